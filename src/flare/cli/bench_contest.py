"""Helpers of `flare bench run`, `leaderboard` and `make-task`: their input files, and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from ..bench import leaderboard
from ..bench.contest import Score
from ..bench.entries import ENTRIES
from ..bench.tasks import KINDS, find_tasks, import_named
from ..core.validation import one_of
from .output import console, plain

NARROW = (
    "",
    "score",
    "AUROC",
    "95%",
    *KINDS,
    "bad in best half",
    "calls",
)  # columns of a terminal


def find_score(name: str) -> tuple[str, Score]:
    """The name and the function of package.module:function, or of an entry of the leaderboard."""
    if ":" in name:
        return name.partition(":")[2], import_named(name)
    return name, ENTRIES[one_of("score", name, ENTRIES)]


def find_results(tasks: Sequence[str]) -> Path:
    """The results of the leaderboard, next to the tasks."""
    return find_tasks(tasks or None)[0].parent / leaderboard.RESULTS


def show_rows(found: dict[str, Any], others: dict[str, dict[str, Any]]) -> None:
    """Print the leaderboard with a new score, on the tasks of the new score."""
    tasks = {task for task, figures in found["tasks"].items() if "auroc" in figures}
    comparable = {
        name: each
        for name, each in others.items()
        if all(each["tasks"].get(task, {}).get("task") == found["tasks"][task]["task"] for task in tasks)
    }
    results = {**comparable, f"→ {found['score']}": found}
    cells = leaderboard.table(leaderboard.rank(results, sorted(tasks)))
    chosen = [cells[0].index(column) for column in NARROW]
    table = Table(*(cells[0][k] for k in chosen), box=None, padding=(0, 2, 0, 0))
    for row in cells[1:]:
        table.add_row(*(plain(row[k]) for k in chosen))
    console(stderr=False).print(table)


def read_vector(path: Path, what: str) -> Tensor:
    """One number per sample from an npy file."""
    try:
        values = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path} is not an npy file of numbers: {error}.") from error
    if values.ndim != 1:
        raise ValueError(f"{path} must have one number per sample for {what}, got shape {values.shape}.")
    return torch.from_numpy(values)


def write_page(page: Path, results: dict[str, dict[str, Any]], by: str) -> list[str]:
    """Fill the leaderboard page and draw its chart; returns the ranking."""
    rows = leaderboard.rank(results, by=by)
    chart = page.parent / "images" / "leaderboard.svg"
    leaderboard.draw_chart(chart, rows)
    versions = ", ".join(sorted({row["flare"] for row in rows}))
    parts = {
        "leaderboard": leaderboard.to_markdown(leaderboard.table(rows)),
        "tasks": leaderboard.to_markdown(leaderboard.task_table(rows)),
        "facts": f"{len(rows)} scores on {len(rows[0]['tasks'])} tasks, computed with FLARE {versions}.",
    }
    page.write_text(leaderboard.fill_page(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    return [row["score"] for row in rows]
