"""The length of the documentation: `python -m tools.words` prints the words of every page and its budget.

Words are those that people read: code blocks, comments, the addresses of links and the lines of tables are
not counted.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .document import DOCS, ROOT

#: the most words of a page, by its path from the root of the repository; pages of evidence have none
BUDGETS: dict[str, int] = {
    "README.md": 500,
    "docs/index.md": 250,
    "docs/install.md": 150,
    "docs/your-model.md": 700,
    "docs/diffusers.md": 700,
    "docs/text.md": 400,
    "docs/tables.md": 400,
    "docs/trust.md": 900,
    "docs/filter.md": 500,
    "docs/labels.md": 400,
    "docs/report.md": 400,
    "docs/plots.md": 400,
    "docs/problems.md": 900,
    "docs/big-jobs.md": 600,
    "docs/how-it-works.md": 1200,
    "docs/choose.md": 700,
    "docs/uncertainty.md": 2500,
    "docs/coming-from.md": 700,
    "docs/architecture.md": 1500,
    "docs/real-data.md": 900,
    "docs/reproduction.md": 2500,
    "docs/performance.md": 400,
}
#: pages that commands write, or that list every line of the paper
UNLIMITED = ("paper.md", "leaderboard.md", "citing.md")


def count_words(text: str) -> int:
    """The words of a Markdown page."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)|^\|[-| ]+\|$", " ", text, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def count_pages() -> dict[str, int]:
    """The words of the README and of the pages directly below docs, by path."""
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return {_name(page): count_words(page.read_text(encoding="utf-8")) for page in pages}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def main() -> None:
    """Print the table; exit with 1 if a page is too long."""
    counts, total, over = count_pages(), 0, False
    for name, count in counts.items():
        budget = BUDGETS.get(name)
        total += count if budget else 0
        over |= budget is not None and count > budget
        print(f"{name:28} {count:6,}" + ("" if budget is None else f" of {budget:6,}"))
    print(f"{'pages with a budget':28} {total:6,} of {sum(BUDGETS.values()):6,}")
    sys.exit(over)


if __name__ == "__main__":
    main()
