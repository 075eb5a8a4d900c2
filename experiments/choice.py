"""The figures of the study: AUROCs of every candidate and baseline, intervals, and who wins.

The rule of choice: the candidate with the highest mean AUROC over the data sets on the choosing seeds. It is
reported on the other seeds. What is not measured yet is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from flare.bench import metrics

from . import detection, verdict
from .candidates import VERDICT, Evidence, rank_all
from .detection import CHOOSING, draw, runs_of, studies_of
from .lab import Found, Job
from .subjects import SYNTHETIC

DRAWS = 1_000  # bootstrap resamples
ELEVEN = ("digits", "digits-early", "mnist", "shapes", "air", "power", *SYNTHETIC)  # the sets of 0.4
Row = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Run:
    """The samples of one model and seed, with every score.

    Attributes:
        member: the seed of the model's training.
        seed: of the samples and of the scorer.
        bad: which samples are bad, (n,) bool.
        scores: of all candidates, (n,) each.
        rivals: of baselines, of the first samples, (at most n,) each.
        mode: the class or mode of each sample, (n,), if there are any.
        panel: which are bad by the second judge, if there is one.
        found: what `verdict` stored.
        drawn: the job that drew the samples.
    """

    member: int
    seed: int
    bad: Tensor
    scores: Mapping[str, Tensor]
    rivals: Mapping[str, Tensor]
    mode: Tensor | None = None
    panel: Tensor | None = None
    found: Found | None = None
    drawn: Job | None = None

    @property
    def choosing(self) -> bool:
        """Whether it belongs to the choice."""
        return self.seed in CHOOSING

    @property
    def mixed(self) -> bool:
        """Whether there are good and bad samples, so that scores can be judged."""
        return bool(0 < self.bad.sum() < len(self.bad))

    @cached_property
    def x(self) -> Tensor:
        """The samples, (n, *shape)."""
        assert self.drawn is not None
        return self.drawn.found()["samples"]

    def get(self, name: str) -> Tensor | None:
        """A candidate or baseline; that of a baseline may be of the first samples only."""
        return self.scores.get(name, self.rivals.get(name))


@cache
def load_runs(study: str, quick: bool) -> tuple[Run, ...]:
    """All runs of a study that were scored and judged."""
    judged = detection.judge(study, quick)
    if not judged.done:
        return ()
    said, out = judged.found(), []
    for member, seed, n in runs_of(study, quick):
        job, key = verdict.job(study, member, seed, n, quick), f"{member}.{seed}"
        if not job.done:
            continue
        found = job.found()
        out.append(
            Run(
                member, seed, said[f"bad.{key}"], rank_all(_evidence(found)),
                {} if member else _find_rivals(study, seed, quick), said.get(f"mode.{key}"),
                said.get(f"panel.{key}"), found, draw(study, member, seed, n, quick),
            )
        )  # fmt: skip
    return tuple(out)


def _evidence(found: Found) -> Evidence:
    scores, real = (
        {key.removeprefix(kind): value for key, value in found.items() if key.startswith(kind)}
        for kind in ("score.", "real.")
    )
    return Evidence(scores, real, found["repeatability"])


def _find_rivals(study: str, seed: int, quick: bool) -> dict[str, Tensor]:
    jobs = [job for job in detection.rival_jobs(study, quick) if job.config["seed"] == seed and job.done]
    return {
        key.removeprefix("score."): value.double()
        for job in jobs
        for key, value in job.found().items()
        if key.startswith("score.")
    }


def runs_that(study: str, quick: bool, choosing: bool) -> list[Run]:
    """The runs that choose or that report, as far as scores can be judged by them."""
    return [run for run in load_runs(study, quick) if run.choosing == choosing and run.mixed]


def reporting(study: str, quick: bool) -> list[Run]:
    """The runs that report."""
    return runs_that(study, quick, choosing=False)


@cache
def measured(quick: bool, choosing: bool = False) -> tuple[str, ...]:
    """The studies that have such runs."""
    return tuple(study for study in studies_of(quick) if runs_that(study, quick, choosing))


def judge_auroc(score: Tensor | None, bad: Tensor) -> float | None:
    """The AUROC of a score of the first samples; None without a score, or if all or none are bad."""
    if score is None:
        return None
    bad = bad[: len(score)]
    return metrics.auroc(score, bad) if 0 < bad.sum() < len(bad) else None


def mean_auroc(runs: Sequence[Run], name: str) -> float | None:
    """The mean AUROC over the runs.

    For a score that was measured on some of the runs, or on the first samples of these only, the mean of the
    verdict over all runs plus the mean difference of both on these samples: what easier samples bring is not
    its merit.
    """
    own, same, whole, complete = [], [], [], True
    for run in runs:
        score, ours = run.get(name), run.scores[VERDICT]
        whole.append(metrics.auroc(ours, run.bad))
        value = judge_auroc(score, run.bad)
        complete &= value is not None and score is not None and len(score) == len(run.bad)
        if score is not None and value is not None:
            own.append(value)
            same.append(metrics.auroc(ours[: len(score)], run.bad[: len(score)]))
    if not own:
        return None
    mean = statistics.fmean(own)
    return mean if complete else mean + statistics.fmean(whole) - statistics.fmean(same)


@cache
def table_of(quick: bool, choosing: bool = False) -> dict[str, dict[str, float]]:
    """candidate or baseline -> study -> mean AUROC, on the choosing or on the reporting seeds."""
    out: dict[str, dict[str, float]] = {}
    for study in measured(quick, choosing):
        runs = runs_that(study, quick, choosing)
        for name in dict.fromkeys(name for run in runs for name in (*run.scores, *run.rivals)):
            if (value := mean_auroc(runs, name)) is not None:
                out.setdefault(name, {})[study] = value
    return out


def rank(table: Mapping[str, Row], studies: Sequence[str]) -> list[str]:
    """The names that exist on all studies, the highest mean first."""
    whole = [name for name, row in table.items() if all(study in row for study in studies)]
    return sorted(whole, key=lambda name: -statistics.fmean(table[name][study] for study in studies))


def resample(score: Tensor, bad: Tensor, seed: int = 0, draws: int = DRAWS) -> Tensor:
    """AUROCs of a score for `draws` bootstrap resamples of the samples, (draws,).

    The samples are drawn with replacement, bad and good ones alike; a resample without both is NaN. Equal
    seeds draw equal samples, so that the difference of two scores can be resampled in pairs.
    """
    n = len(score)
    picked = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(draws, n, dtype=torch.float64)
    return weighted_auroc(score, bad[:n], torch.zeros_like(ones).scatter_add_(1, picked, ones))


def resample_runs(values: Tensor, seed: int = 0) -> Tensor:
    """The mean over runs drawn with replacement, of resamples (runs, draws) of each, (draws,).

    A run that is drawn twice takes part with different resamples of its samples.
    """
    runs, draws = values.shape
    picked = torch.randint(runs, (runs, draws), generator=torch.Generator().manual_seed(seed))
    place = torch.arange(draws)
    return torch.stack([values[own, (place + 7 * k) % draws] for k, own in enumerate(picked)]).nanmean(0)


def weighted_auroc(score: Tensor, bad: Tensor, weights: Tensor) -> Tensor:
    """AUROCs of a score (n,) with several weights of the samples, (draws, n) -> (draws,); ties count half."""
    _, place = score.double().unique(return_inverse=True)
    levels = int(place.max()) + 1
    by_level = [
        torch.zeros(len(weights), levels, dtype=torch.float64).index_add_(1, place[rows], weights[:, rows])
        for rows in (bad.nonzero().flatten(), (~bad).nonzero().flatten())
    ]
    positive, negative = by_level
    below = negative.cumsum(1) - 0.5 * negative
    return (positive * below).sum(1) / (positive.sum(1) * negative.sum(1))


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap standard error and the 2.5% and 97.5% quantiles of the resamples."""

    mean: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(runs: Sequence[Run], name: str, minus: str | None = None) -> Interval | None:
    """The mean AUROC of a score over runs; or minus that of another, on the samples that both have."""
    exact, resampled = [], []
    for place, run in enumerate(runs):
        found = [run.get(each) for each in (name, minus) if each is not None]
        scores = [score for score in found if score is not None]
        n = min((len(score) for score in scores), default=0)
        bad = run.bad[:n]
        if len(scores) < len(found) or not 0 < bad.sum() < n:
            continue
        signs = [1, -1][: len(scores)]
        exact.append(sum(s * metrics.auroc(each[:n], bad) for s, each in zip(signs, scores, strict=True)))
        own = [s * resample(each[:n], bad, place) for s, each in zip(signs, scores, strict=True)]
        resampled.append(torch.stack(own).sum(0))
    if not exact:
        return None
    spread = resample_runs(torch.stack(resampled))
    spread = spread[~spread.isnan()]
    low, high = spread.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(statistics.fmean(exact), float(spread.std()), low, high)


@cache
def interval_of(study: str, quick: bool, name: str, minus: str | None = None) -> Interval | None:
    """The interval on the reporting runs of a study."""
    return interval(reporting(study, quick), name, minus)


def average(found: Sequence[Interval]) -> tuple[float, float]:
    """The mean over data sets, and its standard error."""
    error = sum(each.error**2 for each in found) ** 0.5 / len(found)
    return statistics.fmean(each.mean for each in found), error


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def mean_over(row: Row, studies: Sequence[str]) -> float | None:
    """The mean over studies if all are there."""
    known = [row[study] for study in studies if study in row]
    return statistics.fmean(known) if studies and len(known) == len(studies) else None
