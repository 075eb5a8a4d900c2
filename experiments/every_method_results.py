"""What the jobs of `bench` found, by data set and method."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flare import bench
from flare.bench import metrics

from .bench import NAMES, bench_job, regions_of
from .common import keep, spread
from .lab import Job
from .models import model_of, truth_of
from .recursion import SIZES

EXACT = "FLARE, tangent"
BLIND, SAME = "random, by region", "residual, by region"
ALL = "all samples"
Row = Mapping[str, Any]  # method -> figures
Rows = Sequence[Row]  # one per seed


def results(jobs: Sequence[Job]) -> dict[str, list[Row]]:
    """The rows of every seed, by data set."""
    out: dict[str, list[Row]] = {name: [] for name in NAMES}
    for job in jobs:
        if job.run is bench_job:
            found = job.found()
            out[job.config["name"]].append(found["rows"] | {BLIND: _blind(job.config["name"], found)})
    return out


def _blind(name: str, found: Mapping[str, Any]) -> dict[str, float]:
    """A random score with the regions of the filter: the effect of the regions alone."""
    regions = regions_of(model_of(name), found["samples.shared"])
    mask = keep(found["score.random"], 0.5, regions=regions)
    held_out = bench.datasets.make(truth_of(name), 4_000, seed=1)
    return {"energy_distance": metrics.energy_distance(found["samples.shared"][mask], held_out)}


def values(rows: Rows, method: str, *path: str) -> list[float]:
    """One figure of a method over the seeds; seeds where it does not exist are left out."""
    out = []
    for row in rows:
        value: Any = row.get(method)
        for key in path:
            value = value.get(key) if value is not None else None
        if value is not None:
            out.append(float(value))
    return out


def mean(rows: Rows, method: str, *path: str) -> float:
    """The mean over the seeds; NaN where there is none."""
    found = values(rows, method, *path)
    return statistics.fmean(found) if found else float("nan")


def deviation(rows: Rows, method: str, *path: str) -> float:
    """The standard deviation over the seeds; 0 for a single one."""
    found = values(rows, method, *path)
    return statistics.stdev(found) if len(found) > 1 else 0.0


def bad_count(name: str, rows: Rows) -> int:
    """How many of the samples that the methods share are bad, over all seeds."""
    return round(SIZES[truth_of(name)] * sum(values(rows, "oracle", "rate_before")))


def cell(found: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """Mean ± standard deviation, or a dash."""
    return spread([factor * v for v in found], digits) if found else "–"


def listed(parts: Iterable[str]) -> str:
    """Parts with commas."""
    return ", ".join(parts)
