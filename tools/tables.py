"""Tables of named options in the documents: `python -m tools.tables` writes them from the registries.

A registered sampler, structure, rule or score shows up in its table with its summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flare import posteriors
from flare.diffusion.samplers import SAMPLERS
from flare.propagation import RULES
from flare.scores import SCORES

from .pages import DOCS, fill

STRUCTURES = vars(posteriors).get("STRUCTURES") or posteriors.Posterior.structures
#: the page of each table, and the options that it lists
TABLES: dict[str, tuple[Path, Mapping[str, Any]]] = {
    "samplers": (DOCS / "tables.md", SAMPLERS),
    "structures": (DOCS / "uncertainty.md", STRUCTURES),
    "rules": (DOCS / "uncertainty.md", RULES),
    "scores": (DOCS / "uncertainty.md", SCORES),
}


def table(options: Mapping[str, Any]) -> str:
    """Names and summaries as a table of Markdown."""
    lines = [f"| `{name}` | {summarize(options[name])} |" for name in options]
    return "\n".join(["| name | what it is |", "|---|---|", *lines])


def summarize(entry: Any) -> str:
    """The summary of an entry, or the first line of its docstring, without the full stop."""
    text = getattr(entry, "summary", "") or (entry.__doc__ or "").strip().splitlines()[0]
    return str(text).rstrip(".").replace("|", "\\|")


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
