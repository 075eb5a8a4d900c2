"""The rule of choice and its figures: AUROCs of every candidate, bootstrap intervals, and who wins.

The rule: of the candidates that exist on every data set, the one with the highest mean AUROC over the data
sets on the choosing seeds. It is reported on the other seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from flare.bench import metrics

from . import candidates
from .candidates import DEFAULT, FEATURES
from .detection import (
    CHOOSING,
    costly_job,
    draw,
    jobs,
    judge_job,
    reference_job,
    rivals_job,
    runs_of,
    score_job,
)  # fmt: skip
from .lab import Job
from .subjects import STUDIES

DRAWS = 1_000  # bootstrap resamples
Table = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Run:
    """The samples of one model and seed, with every score.

    Attributes:
        member: the seed of the model's training.
        seed: of the samples.
        x: the samples, (n, *shape).
        bad: which are bad, (n,) bool.
        mode: the class or mode of each, (n,), if there are any.
        panel: which are bad by the second judge, if there is one.
        scores: of all candidates, (n,) each.
        rivals: of baselines, of the first samples, (at most n,) each.
        reference: the scores of held-out data.
    """

    member: int
    seed: int
    x: Tensor
    bad: Tensor
    mode: Tensor | None
    panel: Tensor | None
    scores: Mapping[str, Tensor]
    rivals: Mapping[str, Tensor]
    reference: Mapping[str, Tensor]

    @property
    def choosing(self) -> bool:
        """Whether it belongs to the choice."""
        return self.seed in CHOOSING

    def all_scores(self) -> dict[str, Tensor]:
        """Of candidates and baselines; those of baselines may be of the first samples only."""
        return {**self.scores, **self.rivals}


@cache
def complete(quick: bool) -> tuple[str, ...]:
    """The studies whose candidates were all measured and can be judged; after a whole run, all of them."""
    needed: dict[str, list[Job]] = {study: [] for study in STUDIES}
    for job in jobs(quick):
        if job.run in (score_job, reference_job, judge_job):
            needed[job.config["study"]].append(job)
    done = [study for study, own in needed.items() if all(job.done for job in own)]
    return tuple(study for study in done if _has_good_and_bad(load_runs(study, quick)))


def _has_good_and_bad(runs: Sequence[Run]) -> bool:
    """Whether scores can be judged on choosing and on reporting seeds; quick models may make no good ones."""
    judged = {run.choosing for run in runs if 0 < run.bad.sum() < len(run.bad)}
    return len(judged) == 2


@cache
def load_runs(study: str, quick: bool) -> tuple[Run, ...]:
    """All runs of a study, from the results of its jobs."""
    own = [job for job in jobs(quick) if job.config.get("study") == study and job.done]

    def find(run: object, **config: object) -> dict[str, Tensor]:
        """The scores of the jobs of a function and configuration."""
        matching = [
            job for job in own
            if job.run is run and all(job.config[key] == value for key, value in config.items())
        ]  # fmt: skip
        return _scores(matching)

    judged = next(job for job in own if job.run is judge_job).found()
    out = []
    for member, seed, n in runs_of(study, quick):
        key = f"{member}.{seed}"
        single = find(score_job, member=member, seed=seed)
        reference = find(reference_job, member=member)
        if f"features.{key}" in judged:
            single[FEATURES] = judged[f"features.{key}"]
            reference[FEATURES] = judged["features.reference"]
        rivals = {} if member else find(rivals_job, seed=seed) | find(costly_job, seed=seed)
        combined = candidates.combine(single, reference)
        out.append(
            Run(
                member, seed, draw(study, member, seed, n, quick).found()["samples"], judged[f"bad.{key}"],
                judged.get(f"mode.{key}"), judged.get(f"panel.{key}"), {**single, **combined}, rivals,
                reference,
            )
        )  # fmt: skip
    return tuple(out)


def _scores(found: Sequence[Job]) -> dict[str, Tensor]:
    return {
        key.removeprefix("score."): value.double()
        for job in found
        for key, value in job.found().items()
        if key.startswith("score.")
    }


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
    found, beside, whole = [], [], []
    for run in runs:
        verdict = run.scores[DEFAULT]
        score = run.all_scores().get(name)
        if (value := judge_auroc(verdict, run.bad)) is not None:
            whole.append(value)
        if score is not None and (value := judge_auroc(score, run.bad)) is not None:
            found.append((value, len(score)))
            beside.append(judge_auroc(verdict[: len(score)], run.bad))
    if not found:
        return None
    mean = statistics.fmean(value for value, _ in found)
    if len(found) == len(whole) and all(n == len(run.bad) for (_, n), run in zip(found, runs, strict=False)):
        return mean
    return mean + statistics.fmean(whole) - statistics.fmean(beside)


@cache
def table_of(quick: bool, choosing: bool) -> dict[str, dict[str, float]]:
    """candidate or baseline -> study -> mean AUROC, on the choosing or on the reporting seeds."""
    out: dict[str, dict[str, float]] = {}
    for study in complete(quick):
        runs = [run for run in load_runs(study, quick) if run.choosing == choosing]
        names = dict.fromkeys(name for run in runs for name in run.all_scores())
        for name in names:
            if (value := mean_auroc(runs, name)) is not None:
                out.setdefault(name, {})[study] = value
    return out


def rank(table: Table, studies: Sequence[str]) -> list[str]:
    """The names that exist on all studies, the highest mean first."""
    whole = [name for name, row in table.items() if all(study in row for study in studies)]
    return sorted(whole, key=lambda name: -statistics.fmean(table[name][study] for study in studies))


def resample(scores: Sequence[Tensor], bads: Sequence[Tensor], draws: int = DRAWS, seed: int = 0) -> Tensor:
    """The mean AUROC over runs for `draws` bootstrap resamples of the samples of every run, (draws,).

    The samples of a run are drawn with replacement, bad and good ones alike; resamples without both are left
    out of the mean. Runs without both are left out. Equal seeds draw equal samples, so that the difference of
    two scores can be resampled in pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    sums, counts = torch.zeros(draws, dtype=torch.float64), torch.zeros(draws, dtype=torch.float64)
    for score, bad in zip(scores, bads, strict=True):
        n = len(score)
        picked = torch.randint(n, (draws, n), generator=generator)
        weights = torch.zeros(draws, n, dtype=torch.float64).scatter_add_(
            1, picked, torch.ones(draws, n, dtype=torch.float64)
        )
        value = weighted_auroc(score, bad[:n], weights)
        known = ~value.isnan()
        sums[known] += value[known]
        counts += known
    return sums / counts


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
    names = [name] if minus is None else [name, minus]
    own = []
    for run in runs:
        found = [run.all_scores().get(each) for each in names]
        if any(score is None for score in found):
            continue
        n = min(len(score) for score in found)
        bad = run.bad[:n]
        if 0 < bad.sum() < n:
            own.append(([score[:n] for score in found], bad))
    if not own:
        return None
    bads = [bad for _, bad in own]
    resampled = [resample([scores[k] for scores, _ in own], bads) for k in range(len(names))]
    exact = [
        statistics.fmean(metrics.auroc(scores[k], bad) for scores, bad in own) for k in range(len(names))
    ]
    value = exact[0] - sum(exact[1:])
    spread = resampled[0] - sum(resampled[1:], torch.zeros(DRAWS, dtype=torch.float64))
    spread = spread[~spread.isnan()]
    low, high = spread.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, float(spread.std()), low, high)


def reporting(study: str, quick: bool) -> list[Run]:
    """The runs that report."""
    return [run for run in load_runs(study, quick) if not run.choosing]


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def mean_over(row: Mapping[str, float], studies: Sequence[str]) -> float | None:
    """The mean over studies if all are there."""
    return statistics.fmean(row[s] for s in studies) if all(s in row for s in studies) else None
