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
    """Put `text` into a section of a page; the section is appended if the page does not have it."""
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    begin, end = _marks(name)
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    write_page(path, fill(page, name, text))


def fill(page: str, name: str, content: str) -> str:
    """Return the page with `content` between <!-- name:begin --> and <!-- name:end -->."""
    begin, end = _marks(name)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page must have the lines {begin!r} and {end!r}, in this order.")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def section(page: str, name: str) -> str:
    """The text between <!-- name:begin --> and <!-- name:end -->."""
    begin, end = _marks(name)
    _, found, rest = page.partition(begin)
    text, ended, _ = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page must have the lines {begin!r} and {end!r}, in this order.")
    return text


def read_tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a text, each as rows by the names of the columns; escaped bars are bars again."""
    tables: list[list[dict[str, str]]] = []
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
            tables.append([])
        elif set(line) - set("|- "):
            tables[-1].append(dict(zip(header, cells, strict=True)))
    return tables


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a bar within a cell is escaped, so that it does not end the cell."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


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


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
