"""The page of the leaderboard: `python -m tools.leaderboard [ORDER]` fills its tables and draws its chart.

The results are the files of `tasks/leaderboard`; the order is what scores are ranked by, such as images.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from flare.bench import ENTRIES, leaderboard
from flare.bench.contest import find_interval
from flare.bench.tasks import GROUPS, KINDS
from flare.storage.checkpoint import atomic

from .document import DOCS, ROOT, fill, table, write_page

COLUMNS = 8  # tasks per table: more are wider than a page
RANKED = ("", "score", "AP", "bad in best half", "rarest mode kept", "closer to real", "calls")
Row = dict[str, Any]


def write_leaderboard(page: Path, results: Path, by: str = "all") -> list[str]:
    """Fill the page and draw its chart; return the scores, best first."""
    found = leaderboard.read_leaderboard(results)
    rows = leaderboard.rank(found, by=by)
    draw_chart(page.parent / "images" / "leaderboard.svg", rows)
    shared = list(rows[0]["tasks"])
    scored: dict[str, dict[str, float]] = {
        name: {task: own["auroc"][0] for task, own in each["tasks"].items() if "auroc" in own}
        for name, each in found.items()
    }
    figures = [pair for each in found.values() for pair in each["tasks"].items()]
    groups = {task: own["group"] for task, own in figures if "group" in own}
    tasks = sorted(groups, key=lambda task: (GROUPS.index(groups[task]), task))
    made = [path.parent.name for path in sorted(results.parent.glob("*/task.json"))]
    left = [name for name in made if name not in shared]
    left += [f"the score {name}" for name in ENTRIES if name not in found]
    versions = ", ".join(sorted({row["flare"] for row in rows}))
    parts = {
        "facts": f"{len(rows)} scores on {len(shared)} tasks, computed with FLARE {versions}."
        + (f" Still to run: {', '.join(left)}." if left else ""),
        "leaderboard": rank_table(rows),
        "kinds": best_table(rows, (*GROUPS, *KINDS), lambda row, of: {**row["groups"], **row["kinds"]}[of]),
        "tasks": "\n\n".join(
            best_table(rows, tasks[k : k + COLUMNS], lambda row, of: scored[row["score"]].get(of))
            for k in range(0, len(tasks), COLUMNS)
        ),
    }
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = fill(text, name, content)
    write_page(page, text)
    return [row["score"] for row in rows]


def rank_table(rows: Sequence[Row]) -> str:
    """The main columns, with the paired difference of each score from the first."""
    header, *cells = leaderboard.table(rows)
    own = [[each[header.index(column)] for column in RANKED] for each in cells]
    first = rows[0]
    return table(
        ["", "score", "AUROC", "minus the first", *RANKED[2:]],
        [
            [
                *each[:2],
                show(row["auroc"], row["replicates"], ".3f"),
                ""
                if row is first
                else show(row["auroc"] - first["auroc"], row["replicates"] - first["replicates"], "+.3f"),
                *each[2:],
            ]
            for row, each in zip(rows, own, strict=True)
        ],
    )


def show(value: float, replicates: Any, form: str) -> str:
    """A value, and half the length of the interval of its replicates."""
    low, high = find_interval(replicates)
    return f"{value:{form}}&nbsp;±&nbsp;{(high - low) / 2:.3f}".replace("-", "−")


def best_table(
    rows: Sequence[Row], columns: Sequence[str], figure: Callable[[Row, str], float | None]
) -> str:
    """A figure of every score by column; the best of each column is bold."""
    best = {of: max((figure(row, of) or 0.0 for row in rows), default=0.0) for of in columns}

    def cell(row: Row, of: str) -> str:
        value = figure(row, of)
        text = "–" if value is None else f"{value:.3f}"
        return f"**{text}**" if value is not None and text == f"{best[of]:.3f}" else text

    return table(["score", *columns], [[row["score"], *(cell(row, of) for of in columns)] for row in rows])


def draw_chart(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The mean AUROC of every score with its interval, and a dot per task."""
    ink = "#7d8796"  # read on white and on black
    colors = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: Any = {
        "svg.hashsalt": "flare",
        "svg.fonttype": "none",
        "savefig.transparent": True,
        "backend": "agg",
    }
    with mpl.rc_context({**style, **dict.fromkeys(colors, ink)}):
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
