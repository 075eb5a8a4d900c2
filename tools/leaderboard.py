"""The page of the leaderboard: `python -m tools.leaderboard [ORDER]` fills its tables and draws its chart.

The results are the files of `tasks/leaderboard`; the order is what scores are ranked by, such as images.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from flare.bench import ENTRIES, leaderboard
from flare.storage.checkpoint import atomic

from .document import DOCS, ROOT, fill, table, write_page


def write_leaderboard(page: Path, results: Path, by: str = "all") -> list[str]:
    """Fill the page and draw its chart; return the scores, best first."""
    found = leaderboard.read_leaderboard(results)
    rows = leaderboard.rank(found, by=by)
    draw_chart(page.parent / "images" / "leaderboard.svg", rows)
    header, *cells = leaderboard.table(rows)
    shared = list(rows[0]["tasks"])
    scored = {
        name: {task: own for task, own in each["tasks"].items() if "auroc" in own}
        for name, each in found.items()
    }
    others = sorted(set().union(*scored.values()) - set(shared))
    tasks = [*shared, *others]
    made = [path.parent.name for path in sorted(results.parent.glob("*/task.json"))]
    left = [name for name in made if name not in shared]
    left += [f"the score {name}" for name in ENTRIES if name not in found]
    versions = ", ".join(sorted({row["flare"] for row in rows}))
    parts = {
        "leaderboard": table(header, cells),
        "tasks": table(
            ["score", *tasks],
            [
                [row["score"], *(f"{own[task]['auroc'][0]:.3f}" if task in own else "–" for task in tasks)]
                for row, own in ((row, scored[row["score"]]) for row in rows)
            ],
        ),
        "facts": f"{len(rows)} scores on {len(shared)} tasks, computed with FLARE {versions}."
        + (f" Still to run: {', '.join(left)}." if left else ""),
    }
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = fill(text, name, content)
    write_page(page, text)
    return [row["score"] for row in rows]


def draw_chart(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The mean AUROC of every score with its interval, and a dot per task."""
    style: Any = {
        "svg.hashsalt": "flare",
        "svg.fonttype": "none",
        "savefig.transparent": True,
        "backend": "agg",
    }
    ink = "#7d8796"
    with mpl.rc_context(
        {**style, "text.color": ink, "xtick.color": ink, "ytick.color": ink, "axes.labelcolor": ink}
    ):
        figure, ax = plt.subplots(figsize=(7, 0.27 * len(rows) + 0.8))
        for y, row in enumerate(reversed(rows)):
            each = [auroc for auroc, *_ in row["tasks"].values()]
            ax.plot(each, [y] * len(each), "o", color="#9aa3b0", markersize=3, alpha=0.6)
            ax.plot(row["interval"], [y, y], color="#3f83e0", linewidth=2.5)
            ax.plot(row["auroc"], y, "o", color="#3f83e0", markersize=6)
        ax.set_yticks(range(len(rows)), [row["score"] for row in reversed(rows)])
        ax.set(xlabel="AUROC: mean with its 95% interval, and each task", xlim=(0, 1.01))
        ax.axvline(0.5, color=ink, linewidth=0.7, linestyle=":")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        figure.tight_layout()
        with atomic(path) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    print(*write_leaderboard(DOCS / "leaderboard.md", ROOT / "tasks" / leaderboard.RESULTS, *sys.argv[1:2]))
