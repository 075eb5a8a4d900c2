"""The leaderboard: results of many scores as a table.

Scores are ranked by the mean AUROC over the tasks that all of them have in common. A difference between two
scores is paired: both have the same bootstrap replicates of every task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.validation import one_of
from .contest import find_interval, read_results
from .tasks import GROUPS, KINDS

RESULTS = "leaderboard"  # the directory of results, next to the tasks
Results = Mapping[str, Mapping[str, Any]]  # score -> its results
Row = dict[str, Any]


def read_leaderboard(directory: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The results of all scores in a directory, by name."""
    found = [read_results(path) for path in sorted(Path(directory).glob("*.json"))]
    return {each["score"]: each for each in found}


def rank(results: Results, tasks: Sequence[str] | None = None, by: str = "all") -> list[Row]:
    """One row per score, best first, over the tasks that it shares with all others, or over the given ones.

    `by` selects the mean AUROC to rank by: over "all" tasks, over a group, or for one kind of faults.

    Each row has the score, the mean AUROC with its interval, also by group and by kind of faults, the
    mean average precision, the mean share of bad samples in the best half, the smallest share of a mode in
    it, and the cost.
    """
    one_of("order", by, ("all", *GROUPS, *KINDS))
    shared = set.intersection(*(_scored(each) for each in results.values())) if results else set()
    used = sorted(task for task, _ in shared if tasks is None or task in tasks)
    if not used:
        found = "the scores have no task in common" if results else "there are no results of scores"
        raise ValueError(f"{found}; run them on the same tasks: `flare bench run SCORE --out FILE`.")
    rows = []
    for name, each in results.items():
        figures = [each["tasks"][task] for task in used]
        replicates = np.mean([one["replicates"] for one in figures], axis=0)
        rows.append(
            {
                "score": name,
                "auroc": float(np.mean([one["auroc"][0] for one in figures])),
                "interval": find_interval(replicates),
                "replicates": replicates,
                "groups": {
                    group: _mean(one["auroc"][0] for one in figures if one["group"] == group)
                    for group in GROUPS
                },
                "kinds": {
                    kind: _mean(one["kinds"][kind] for one in figures if kind in one["kinds"])
                    for kind in KINDS
                },
                "average_precision": _mean(one["average_precision"][0] for one in figures),
                "kept_bad": _mean(one["kept_bad"] for one in figures),
                "mode": _mean(
                    one["rarest_mode_kept"] for one in figures if one.get("rarest_mode_kept") is not None
                ),
                "closer": _mean(one["energy_distance"][1] < one["energy_distance"][0] for one in figures),
                "calls": _mean(one["calls"] for one in figures),
                "tasks": {task: each["tasks"][task]["auroc"] for task in used},
                "flare": each["flare"],
            }
        )

    def worth(row: Row) -> float:
        value = {"all": row["auroc"], **row["groups"], **row["kinds"]}[by]
        return -1.0 if value is None else float(value)

    return sorted(rows, key=worth, reverse=True)


def tie_with(best: Row, other: Row) -> bool:
    """Whether the interval of the paired difference between two rows contains 0."""
    low, high = find_interval(best["replicates"] - other["replicates"])
    return low <= 0 <= high


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, the names of the columns first."""
    last = ("AP", "bad in best half", "rarest mode kept", "closer to real", "calls")
    out = [["", "score", "AUROC", "95%", *GROUPS, *KINDS, *last]]
    for place, row in enumerate(rows, 1):
        low, high = row["interval"]
        figures = [*row["groups"].values(), *row["kinds"].values(), row["average_precision"]]
        tie = "=" if place > 1 and tie_with(rows[0], row) else ""
        out.append(
            [
                f"{place}{tie}", row["score"], f"{row['auroc']:.3f}", f"{low:.3f}–{high:.3f}",
                *(_show(value, ".3f") for value in figures),
                _show(row["kept_bad"], ".1%"), _show(row["mode"], ".0%"), _show(row["closer"], ".0%"),
                _show(row["calls"], ",.0f"),
            ]
        )  # fmt: skip
    return out


def _scored(results: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The tasks that a score has figures for, with their hashes: a task that changes counts as a new one."""
    return {(task, each["task"]) for task, each in results["tasks"].items() if "auroc" in each}


def _mean(values: Any) -> float | None:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else None


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
