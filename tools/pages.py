"""Generated parts of documents: text between a pair of markers, which are comments of Markdown."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def markers(name: str, module: str) -> tuple[str, str]:
    """The lines before and after a part that `python -m module` writes."""
    return f"<!-- {name}: written by python -m {module} -->", f"<!-- end of {name} -->"


def fill(text: str, name: str, module: str, content: str) -> str:
    """The text with `content` between the markers of a part."""
    start, end = markers(name, module)
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page must have the lines {start!r} and {end!r}, in this order.")
    return f"{before}{start}\n{content}\n{end}{after}"
