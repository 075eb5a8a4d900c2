"""Sections of a page that commands write: what stands between two marks is theirs."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from flare.storage.checkpoint import atomic

PERFORMANCE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between <!-- name:begin --> and <!-- name:end --> of a page; at its end if it has none."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    with atomic(path) as partial:
        partial.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def command(name: str, about: str | None, section: Callable[[bool], str], threads: int = 1) -> None:
    """The command line of a benchmark: print its section and, with --write, put it into the page."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--write", action="store_true", help=f"write into {PERFORMANCE.name}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = f"{section(options.quick).strip()}\n\nMeasured on {machine()}.\n"
    print(text)
    if options.write:
        replace_section(PERFORMANCE, name, text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> str:
    """Where a figure was measured, in a line."""
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s) used; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
