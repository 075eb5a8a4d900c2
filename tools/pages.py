"""Generated parts of pages: the text between <!-- name:begin --> and <!-- name:end -->."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def fill(page: str, name: str, content: str) -> str:
    """Return the page with `content` between the marks of a part."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page must have the lines {begin!r} and {end!r}, in this order.")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
