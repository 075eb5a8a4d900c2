"""The sections of docs/evidence/real-data.md: noise, baselines, filters, options, cost, judges."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from flare.bench import metrics
from tools.document import table

from . import keeping, sheets
from . import options as tried
from .candidates import ACTIVATIONS, EPISTEMIC, FOUR, INFLUENCE, NEIGHBORS, THREE, VERDICT
from .choice import (
    Run,
    interval_of,
    judge_auroc,
    load_runs,
    mean_over,
    measured,
    number,
    reporting,
    table_of,
)
from .common import spearman
from .costs import TIMED, cost_job, ratios
from .detection import DIRECTIONS, JUDGED_TWICE, reliability_job, size_of
from .judge import QUANTILE
from .lab import Job
from .subjects import REAL, SYNTHETIC, WHAT
from .verdict import job as verdict_of
from .verdict import noise

CHEAP = (
    "plain residual", "denoising error", "last 10 iterates", "ensemble", "MSMA", "DiffPath, 1-D",
    "DiffPath, 6-D", "FLIPD", "realism", "density",
)  # fmt: skip
COSTLY = (
    "expected_residual", "tangent trace", "released weighting", "DDPM-OOD", "aleatoric",
    "gradient norms by layer",
)  # fmt: skip
RIVALS = (*CHEAP, *COSTLY)
BASELINES = (*RIVALS, NEIGHBORS)
WIDE = 6  # columns of baselines that fit on a page
HOW: tuple[Callable[[Iterable[Any]], float], ...] = (statistics.median, max)
ALPHAS = (0.05, 0.1, 0.5)  # of p-values


@dataclass(frozen=True)
class Noise:
    """What other noise and fresh real data say of a scorer.

    Attributes:
        spearman: the rank correlation of the verdict and of each score between noises, all else the same.
        seeds: that of the verdict between seeds, which also choose the training samples that are kept.
        pairs: pairs of noises per level.
        shares: of fresh real samples with a p-value of at most each of `ALPHAS`.
        uniform: the p-value of the test of Kolmogorov and Smirnov.
        count: of fresh real samples.
    """

    spearman: Mapping[str, float]
    seeds: float
    pairs: int
    shares: Sequence[float]
    uniform: float
    count: int


@cache
def load_noise(study: str, quick: bool) -> Noise | None:
    """Of the first reporting seed; None if it is not done."""
    job = verdict_of(study, 0, 5, size_of(study, quick).reporting, quick)
    if not job.done:
        return None
    found = job.found()
    seeds = spearman(found["z"], found["again.z"])
    same = {name: spearman(found[f"score.{name}"], found[f"again.score.{name}"]) for name in THREE}
    same["verdict"] = seeds
    if (alone := noise(study, quick)).done:
        same = alone.found()
    p, n = found["fresh"], len(found[f"real.{NEIGHBORS}"])
    # the reference is a sample, too: with two samples the test is one of ranks, and so of p-values
    own = torch.arange(1, n + 1).double() / (n + 1)
    return Noise(
        same,
        seeds,
        found["pairs"],
        [float((p <= alpha).double().mean()) for alpha in ALPHAS],
        float(stats.ks_2samp(p.numpy(), own.numpy()).pvalue),
        len(p),
    )


def load_all_noise(quick: bool) -> dict[str, Noise]:
    """Of all studies that are done."""
    found = {study: load_noise(study, quick) for study in measured(quick)}
    return {study: own for study, own in found.items() if own is not None}


def repeatability(quick: bool) -> list[str]:
    """Spearman between noise seeds."""
    every = load_all_noise(quick)
    rows = [
        [
            study, str(2 * found.pairs), *(f"{found.spearman[name]:.3f}" for name in ("verdict", *THREE)),
            f"{found.seeds:.3f}",
        ]
        for study, found in every.items()
    ]  # fmt: skip
    seeds = [study for study in every if not noise(study, quick).done]
    return [
        "The rank correlation between the scores of the same samples with two noises, all else the same. "
        "*Two seeds* compares the verdicts of two scorers of the same posterior: where not all training "
        "samples are kept, they also measure distances to different ones, which matters in the plane. For "
        f"{', '.join(seeds) or 'no set'} two seeds replace two noises.",
        table(["", "noises per level", "verdict", *THREE, "two seeds"], rows),
    ] if rows else []  # fmt: skip


def pool(every: Mapping[str, Noise]) -> list[float]:
    """The shares of p-values of fresh real data, over all data sets together."""
    total = sum(found.count for found in every.values())
    return [
        sum(found.shares[place] * found.count for found in every.values()) / total
        for place in range(len(ALPHAS))
    ]


def p_values(quick: bool) -> list[str]:
    """P-values of fresh real data."""
    every = load_all_noise(quick)
    if not every:
        return []
    rows = [
        [study, str(found.count), *(f"{share:.3f}" for share in found.shares), f"{found.uniform:.3f}"]
        for study, found in every.items()
    ]
    rows.append(["**all**", "", *(f"{share:.3f}" for share in pool(every)), ""])
    return [
        "Fresh real data, in neither training nor reference, should have uniform p-values: the shares of "
        "p ≤ α, and a two-sample Kolmogorov–Smirnov test, since the reference is a sample, too.",
        table(["", "samples", *(f"p ≤ {alpha:g}" for alpha in ALPHAS), "KS p"], rows),
    ]


def baselines(quick: bool) -> list[str]:
    """The AUROCs of the baselines, and the verdict minus each."""
    studies, found = measured(quick), table_of(quick)
    names = [name for name in BASELINES if name in found]
    if not names:
        return []
    means = [
        [name, *(number(mean_over(found[each], list(found[name]))) for each in (name, VERDICT))]
        for name in names
    ]

    def cell(study: str, name: str) -> str:
        one = interval_of(study, quick, VERDICT, name)
        return "–" if one is None else f"{1e3 * one.mean:+.0f}±{1e3 * one.error:.0f}"

    split = [
        table(["", *group], [[study, *(cell(study, name) for name in group)] for study in studies])
        for group in (names[start : start + WIDE] for start in range(0, len(names), WIDE))
    ]
    _, lost = find_lost(quick)
    said = "Nowhere is a baseline ahead by more than one standard error."
    if lost:
        said = f"A baseline is ahead by more than one standard error: {'; '.join(lost)}."
    return [
        "The mean AUROC of each baseline, and of the verdict on the same data sets.",
        table(["", "AUROC", "verdict"], means),
        "For every set, the verdict minus the baseline in thousandths of AUROC, ± one standard error, by "
        "bootstrap in pairs on the samples that both scored, "
        f"{_count_scored(studies, quick)} of the first reporting seed.",
        *split,
        f"{said} LLLA, BayesDiff, generative uncertainty and HyperDM are compared on the paper's data in "
        "[the reproduction](evidence/every_method.md).",
    ]


def _count_scored(studies: Sequence[str], quick: bool) -> str:
    """How many samples of a study the baselines have scored, in words."""
    sizes = [size_of(study, quick) for study in studies]
    counts = sorted({n for size in sizes for _, n in (*size.rivals, *size.costly)})
    return " or ".join(map(str, counts))


def find_lost(quick: bool) -> tuple[int, list[str]]:
    """How many comparisons with baselines there are, and where one is ahead by over one standard error."""
    count, lost = 0, []
    for study in measured(quick):
        for name in BASELINES:
            found = interval_of(study, quick, VERDICT, name)
            if found is not None:
                count += 1
                if found.mean < -found.error:
                    lost.append(f"{name} on {study} by {-found.mean:.3f}")
    return count, lost


def find_best(quick: bool) -> dict[str, tuple[str, float]]:
    """study -> the baseline with the highest AUROC, of those that are not part of the verdict."""
    found = table_of(quick)
    out = {}
    for study in measured(quick):
        own = {name: found[name][study] for name in RIVALS if study in found.get(name, {})}
        if own:
            best = max(own, key=own.__getitem__)
            out[study] = best, own[best]
    return out


def filters(quick: bool) -> list[str]:
    """What filters keep at an equal share."""
    found = keeping.every(quick)
    if not found:
        return []
    recommended, good = keeping.recommend(found)
    names = list(next(iter(found.values())))
    bad = [[study, *(f"{100 * own[name].bad:.1f}" for name in names)] for study, own in found.items()]
    bad.append(["**keeps both**", *(f"{good[name]} of {len(found)}" for name in names)])
    rest = []
    for name in (name for name in names if name != keeping.EVERYTHING):
        changes = [own[name].change for own in found.values() if own[name].change is not None]
        farther = [1e3 * (own[name].distance - own[keeping.RANDOM].distance) for own in found.values()]
        rest.append([name, *(f"{how(each):.1f}" for each in (changes, farther) for how in HOW)])
    said = "No filter keeps both on more than half of the data sets."
    if recommended:
        said = f"Of the filters that keep both on most sets, **{recommended}** leaves the fewest bad samples."
    return [
        "Each filter keeps half of the samples with `result.keep`: by rank, or the same share of every "
        "region of the data. *p > 0.05, the rest by chance* chooses by chance among the samples that look no "
        "more doubtful than 95% of real data. Bad samples among the kept, in %, and on how many data sets a "
        f"filter *keeps both*: no share of a mode changes by more than {keeping.POINTS:g} points, and the "
        "energy distance to held-out data is no larger than that of the random filter, within two standard "
        "errors.",
        table(["bad, %", *names], bad),
        "The largest change of the share of a mode or class, in points, and the energy distance to held-out "
        "data minus that of the random filter, in thousandths: the median over data sets, and the largest.",
        table(["", "mode change: median", "largest", "distance: median", "largest "], rest),
        said,
    ]


@cache
def _load_options(quick: bool) -> dict[str, dict[str, float]]:
    """option -> study -> mean AUROC over the seeds that are done."""
    values: dict[str, dict[str, list[float]]] = {}
    for job in (job for job in tried.jobs(quick) if job.done):
        study, seed = job.config["study"], job.config["seed"]
        run = next((r for r in load_runs(study, quick) if (r.member, r.seed) == (0, seed)), None)
        if run is None or not run.mixed:
            continue
        for key, score in job.found().items():
            if key.startswith("score."):
                own = values.setdefault(key.removeprefix("score."), {}).setdefault(study, [])
                own.append(metrics.auroc(score, run.bad))
    return {
        name: {study: statistics.fmean(own) for study, own in row.items()} for name, row in values.items()
    }


def options(quick: bool) -> list[str]:
    """Levels, noises and scalings."""
    found = _load_options(quick)
    if not found:
        return []
    studies = [study for study in tried.STUDIES if any(study in row for row in found.values())]
    usual, more = (tried.describe(pairs) for pairs in tried.PAIRS)
    grids = [*(f"level {level:g}" for level in tried.LEVELS), usual, more]
    scores = (ACTIVATIONS, EPISTEMIC, INFLUENCE)
    means = [
        [grid, *(number(mean_over(found.get(f"{score}, {grid}", {}), studies)) for score in scores)]
        for grid in grids
    ]
    scaled = {
        "each layer and level (default)": f"{ACTIVATIONS}, {usual}",
        **{
            label: f"{ACTIVATIONS}, {label}"
            for label in ("every feature standardized", "not scaled", "cosine distance")
        },
    }
    rows = [[study, *(number(found[name].get(study)) for name in scaled.values())] for study in studies]
    rows.append(["**mean**", *(number(mean_over(found[name], studies)) for name in scaled.values())])
    seeds = " and ".join(map(str, tried.SEEDS))
    return [
        f"Choosing seeds {seeds}, with distances to {tried.TRAINING:,} training samples; means over "
        f"{', '.join(studies)}. By one noise level alone, as a share of T, by all four, and with four times "
        "the noises:",
        table(["mean AUROC", *scores], means),
        "`activations` by what its features are divided by before distances are measured:",
        table([ACTIVATIONS, *scaled], rows),
    ]


def cost(jobs: Sequence[Job]) -> list[str]:
    """The time compared with plain sampling."""
    found = {job.config["study"]: job.found() for job in jobs if job.run is cost_job}
    timed = [study for study in (*TIMED, *found) if study in found]
    timed = list(dict.fromkeys(timed))
    if not timed:
        return []
    labels = {
        "verdict": "verdict: `Scorer.score`",
        NEIGHBORS: "of this, `neighbors`",
        "expected_residual": f"sampling with `expected_residual`, {DIRECTIONS} directions",
    }
    rows = [
        [label, *(f"{ratios(jobs, study)[name]:.3f}" for study in timed)] for name, label in labels.items()
    ]
    states = " and ".join(f"{found[study]['states']} on {study}" for study in timed)
    return [
        f"The time over that of plain sampling in {found[timed[0]]['steps']} steps, measured in turn on one "
        "thread, the median over rounds. The verdict calls the network once per state, with one backward "
        f"pass; states per sample: {states}.",
        table(["time / plain sampling", *timed], rows),
    ]


def second_judge(quick: bool) -> list[str]:
    """What the second judge says of every score."""
    rows, agree = [], []
    for study in (study for study in JUDGED_TWICE if study in measured(quick)):
        runs = reporting(study, quick)
        same = statistics.fmean(metrics.rate(torch.eq(run.bad, run.panel)) for run in runs)
        agree.append(f"{100 * same:.1f}% of {study}")
        for key, label in (("bad", "first"), ("panel", "second")):
            share = 100 * statistics.fmean(metrics.rate(getattr(run, key)) for run in runs)
            values = [_mean_of(runs, name, key) for name in (VERDICT, *FOUR)]
            rows.append([f"{study}, {label} judge", f"{share:.1f}", *map(number, values)])
    if not rows:
        return []
    return [
        "The first judge measures distances between features of a classifier and training data, which may "
        "favor scores that are distances. The second is an ensemble of perceptrons, trained on the held-out "
        "data alone, that looks only at entropy and disagreement. They agree on "
        f"{', '.join(agree)}.",
        table(["AUROC", "bad, %", "verdict", *FOUR], rows),
    ]


def _mean_of(runs: Sequence[Run], name: str, key: str) -> float | None:
    found = [judge_auroc(run.scores.get(name), getattr(run, key)) for run in runs]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


def judges(jobs: Sequence[Job], studies: Sequence[str]) -> list[str]:
    """Who says what is bad, and how far the learned judges can be trusted."""
    rows = [
        [
            job.config["name"], f"{found['train']:,}", f"{found['test']:,}", f"{100 * found['accuracy']:.1f}",
            f"{100 * found['bad']:.1f}", f"{100 * found['blends']:.1f}",
        ]
        for job, found in ((job, job.found()) for job in jobs if job.run is reliability_job)
    ]  # fmt: skip
    head = ["", "training", "held out", "accuracy, %", "bad: held-out, %", "bad: blends, %"]
    return [
        "\n".join(f"- **{study}**: {WHAT[study]}" for study in studies),
        f"**By code**: shapes, arcs and tumors have rules that are measured from the sample. On "
        f"{', '.join(SYNTHETIC[:-1])} a sample is bad if it is farther from the known truth than 99.9% of "
        "real ones; on the lattice, if it is over four standard deviations from every center.",
        "**By a classifier** of the real training data, on the others: a sample is bad if the entropy of the "
        "answer or the distance of its features from the nearest training samples is beyond what "
        f"{100 * QUANTILE:g}% of held-out samples keep, or if a class-conditional model was asked for "
        "another class. Blends are half-way between two held-out samples of different classes: bad for "
        "images, while a day of weather may be another day.",
        *([table(head, rows)] if rows else []),
    ]


def pictures(quick: bool, directory: Path) -> list[str]:
    """The most and the least plausible samples of every real study."""
    parts = []
    for study in (study for study in measured(quick) if study in REAL):
        run, path = next(run for run in reporting(study, quick)), directory / f"{study}.png"
        if run.drawn is not None and run.drawn.done:  # samples of some studies are too large to be kept
            sheets.draw(run.x, run.bad, run.scores[VERDICT], path)
        if path.is_file():
            parts.append(f"![Samples of {study}](images/real/{study}.png)\n\n*{study}*")
    first = "Samples of the first reporting seed, sorted by the verdict; what is bad is red."
    return [first, *parts] if parts else []
