"""Tables of named options in the documents: `python -m tools.tables` writes them from the registries.

A registered sampler, structure, rule, score or baseline shows up in its table with its summary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flare.bench.baselines import BASELINES
from flare.diffusion.samplers import SAMPLERS
from flare.posteriors import STRUCTURES
from flare.propagation import RULES
from flare.scores import SCORES

from .document import DOCS, fill

#: the page of each table, and the options that it lists
TABLES: dict[str, tuple[Path, Mapping[str, Any]]] = {
    "samplers": (DOCS / "uncertainty.md", SAMPLERS),
    "structures": (DOCS / "uncertainty.md", STRUCTURES),
    "rules": (DOCS / "uncertainty.md", RULES),
    "scores": (DOCS / "uncertainty.md", SCORES),
    "baselines": (DOCS / "uncertainty.md", BASELINES),
}


def table(options: Mapping[str, Any]) -> str:
    """Names and summaries as a table of Markdown."""
    lines = [f"| `{name}` | {summarize(options[name])} |" for name in options]
    return "\n".join(["| name | what it is |", "|---|---|", *lines])


def summarize(entry: Any) -> str:
    """The summary of an entry without the full stop."""
    summary = getattr(entry, "summary", None) or inspect.getdoc(entry).partition("\n")[0]
    return str(summary).rstrip(".").replace("|", "\\|")


def fill_page(page: Path, text: str) -> str:
    """The text of a page with all of its tables."""
    for name, (place, options) in TABLES.items():
        if place == page:
            text = fill(text, name, table(options))
    return text


def main() -> None:
    """Write all tables."""
    for page in sorted({page for page, _ in TABLES.values()}):
        page.write_text(fill_page(page, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
