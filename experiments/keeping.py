"""Filters at an equal share kept: how many bad samples stay, and what happens to diversity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from flare.bench import metrics

from .candidates import NEIGHBORS
from .choice import Run, reporting
from .common import keep
from .detection import runs_of, studies_of, subject_of
from .lab import Found, Job
from .subjects import mode_count
from .truth import mode_shares, random_score

KEPT = 0.5
LEVELS = (0.05, 0.5)  # of p-values
EVERYTHING, RANDOM = "all samples", "random"
RANK, REGION = "verdict, by rank", "verdict, by region"
POINTS = 2.0  # percentage points that a mode may lose or gain


@dataclass(frozen=True)
class Kept:
    """What a filter keeps, over all reporting runs of the first model.

    Attributes:
        bad: the share of bad samples among the kept.
        change: the largest change of the share of a mode, in percentage points; None for curves.
        distance: the energy distance to held-out data, the mean over runs.
        error: its standard error over runs.
    """

    bad: float
    change: float | None
    distance: float
    error: float = 0.0


def masks(run: Run) -> dict[str, Tensor]:
    """What every filter keeps of a run, (n,) bool each, as `Result.keep` does."""
    assert run.found is not None
    z, p, regions = (run.found[key] for key in ("z", "p_value", "regions"))
    # samples above the level are ties, which go by index and so by chance
    tied = {alpha: z.masked_fill(p > alpha, float(z.min())) for alpha in LEVELS}
    return {
        EVERYTHING: torch.ones(len(z), dtype=torch.bool),
        RANK: keep(z, KEPT),
        REGION: keep(z, KEPT, regions=regions),
        **{f"p > {alpha:g}, the rest by chance": keep(own, KEPT) for alpha, own in tied.items()},
        **{
            f"p > {alpha:g} by region, the rest by chance": keep(own, KEPT, regions=regions)
            for alpha, own in tied.items()
        },
        f"{NEIGHBORS}, by region": keep(run.scores[NEIGHBORS], KEPT, regions=regions),
        RANDOM: keep(random_score(len(z), run.seed), KEPT),
    }


def keep_job(study: str, runs: list[list[int]], quick: bool) -> Found:
    """Every filter on a study."""
    found = [run for run in reporting(study, quick) if not run.member]
    kept = [masks(run) for run in found]
    rest = subject_of(study, quick).rest
    return {
        name: asdict(_assess(found, [own[name] for own in kept], rest, mode_count(study)))
        for name in (kept[0] if kept else ())
    }


def job(study: str, quick: bool) -> Job:
    """The job that tries every filter on the samples of a study."""
    runs = [list(run) for run in runs_of(study, quick)]
    return Job(f"filters-{study}", keep_job, {"study": study, "runs": runs, "quick": quick}, stage=5)


def _assess(runs: Sequence[Run], kept: Sequence[Tensor], rest: Tensor, modes: int) -> Kept:
    bad = torch.cat([run.bad[mask] for run, mask in zip(runs, kept, strict=True)])
    distances = [metrics.energy_distance(run.x[mask], rest) for run, mask in zip(runs, kept, strict=True)]
    change = None
    if modes:
        before, after = (
            _shares(torch.cat([run.mode[mask] for run, mask in zip(runs, which, strict=True)]), modes)
            for which in ([torch.ones_like(mask) for mask in kept], kept)
        )
        change = 100 * float((after - before).abs().max())
    error = statistics.stdev(distances) / len(distances) ** 0.5 if len(distances) > 1 else 0.0
    return Kept(metrics.rate(bad), change, statistics.fmean(distances), error)


def _shares(mode: Tensor, count: int) -> Tensor:
    """The share of every mode among the samples that have one."""
    known = mode[mode < count]
    return mode_shares(known, count) if len(known) else torch.zeros(count, dtype=torch.float64)


def recommend(found: dict[str, dict[str, Kept]]) -> tuple[str | None, dict[str, int]]:
    """The filter with the fewest bad samples, of those that keep modes and distance; and in how many sets.

    A filter keeps both on a data set if no share of a mode changes by more than two points and the energy
    distance is no larger than that of the random filter, give or take two standard errors. It is eligible if
    it does so on more sets than not.
    """
    good: dict[str, int] = {}
    for study in found:
        random = found[study][RANDOM]
        for name, kept in found[study].items():
            near = kept.distance <= random.distance + 2 * random.error
            fits = near and (kept.change is None or kept.change <= POINTS)
            good[name] = good.get(name, 0) + fits
    names = [n for n in good if n not in (RANDOM, EVERYTHING) and 2 * good[n] > len(found)]
    rate = {n: statistics.fmean(found[study][n].bad for study in found) for n in names}
    return (min(names, key=rate.__getitem__) if names else None), good


def every(quick: bool) -> dict[str, dict[str, Kept]]:
    """study -> filter -> what it keeps, for all studies that are done."""
    out = {}
    for study in studies_of(quick):
        if (own := job(study, quick)).done:
            found = {name: Kept(**value) for name, value in own.found().items() if name != "seconds"}
            out |= {study: found} if found else {}
    return out
