"""Markdown pages that scripts write: tables, sections between two marks, and where a figure was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from flare.storage.checkpoint import atomic

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def write_page(path: Path, text: str) -> None:
    """Write a page; a reader sees the old one or the new one, never half of it."""
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between <!-- name:begin --> and <!-- name:end --> of a page, or append both."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    write_page(path, f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> str:
    """Where a figure was measured, in one line."""
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s) used; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
