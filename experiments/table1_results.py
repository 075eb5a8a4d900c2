"""What the jobs of `bench` found, by data set and method, and what the paper prints beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flare import bench
from flare.bench import metrics

from .bench import NAMES, bench_job, regions_of
from .common import keep, spread
from .lab import Job
from .models import model_of, truth_of
from .recursion import SIZES

MAIN, APPENDIX, EXACT = "FLARE, main", "FLARE, appendix", "FLARE, tangent"
LLLA = ("LLLA, main", "LLLA, appendix")
RIVALS = ("BayesDiff", *LLLA)
BLIND, SAME = "random, by region", "residual, by region"
ALL, TRIES = "all samples", "random filters"
JUDGES = {"network": "retrained", "fixed": "trained once"}
Row = Mapping[str, Any]  # method -> figures
Rows = Sequence[Row]  # one per seed


@dataclass(frozen=True)
class Printed:
    """A line of the paper's Table 1, whichever of its coefficients made it.

    Attributes:
        gap: gap closure in %.
        auc: ROC-AUC.
        p: of its bootstrap.
        said: the gap closure that its text gives, if the text gives another one.
    """

    gap: float
    auc: float
    p: float
    said: float | None = None

    @property
    def gaps(self) -> dict[str, float]:
        """The gap closure of the table, and that of the text if it is another one."""
        return {"in its table": self.gap} | ({} if self.said is None else {"in its text": self.said})


PAPER = {
    ("sines", "BayesDiff"): Printed(13.4, 0.615, 0.0001),
    ("sines", "LLLA"): Printed(47.2, 0.581, 0.0201),
    ("sines", "FLARE"): Printed(93.1, 0.500, 0.0012, said=93.0),
    ("chirp", "BayesDiff"): Printed(41.7, 0.662, 0.0030),
    ("chirp", "LLLA"): Printed(59.1, 0.589, 0.0116),
    ("chirp", "FLARE"): Printed(74.3, 0.535, 0.0002),
    ("damped", "BayesDiff"): Printed(10.4, 0.686, 0.0001),
    ("damped", "LLLA"): Printed(-18.8, 0.775, 0.0066),
    ("damped", "FLARE"): Printed(85.0, 0.509, 0.0002, said=76.2),
}


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


def gap(rows: Rows, method: str, judge: str = "network") -> float:
    """The median gap closure: a ratio, which may be infinite; NaN without the method."""
    found = values(rows, method, judge, "gap_closure")
    return statistics.median(found) if found else float("nan")


def having(rows: Rows, method: str) -> Rows:
    """The seeds in which a method was run."""
    return [row for row in rows if row.get(method) is not None]


def bad_count(name: str, rows: Rows) -> int:
    """How many of the samples that the methods share are bad, over all seeds."""
    return round(SIZES[truth_of(name)] * sum(values(rows, "oracle", "rate_before")))


def middle(found: Sequence[float]) -> str:
    """Median [least, largest], or the value of a single seed."""
    if len(found) < 2:
        return f"{found[0]:.0f}" if found else "–"
    return f"{statistics.median(found):.0f} [{min(found):.0f}, {max(found):.0f}]"


def cell(found: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """Mean ± standard deviation, or a dash."""
    return spread([factor * v for v in found], digits) if found else "–"


def listed(parts: Iterable[str]) -> str:
    """Parts with commas."""
    return ", ".join(parts)
