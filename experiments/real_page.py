"""The sections of docs/real-data.md, from the results of the studies: no figure in it is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache

from flare.bench import metrics
from tools.document import table

from . import choice, keeping
from .candidates import CANDIDATES, DEFAULT, NEIGHBORS
from .choice import complete, interval, load_runs, mean_over, number, rank, reporting, table_of
from .costs import describe, ratios
from .detection import CHOOSING, REPORTING, size_of
from .gradients import FEW, LEVELS, REPEATS
from .keeping import RANK
from .lab import Job
from .subjects import REAL, SYNTHETIC, TWICE

BASELINES = (
    "expected_residual", "plain residual", "denoising error", "tangent trace", "released weighting",
    "last 10 iterates", "ensemble", "MSMA", "DDPM-OOD", "DiffPath, 1-D", "DiffPath, 6-D", "aleatoric",
    "FLIPD", "realism", "density", "gradient norms by layer", "‖g‖² without Σ", NEIGHBORS,
)  # fmt: skip
COSTLY = (
    "expected_residual", "tangent trace", "released weighting", "DDPM-OOD", "aleatoric",
    "gradient norms by layer",
)  # fmt: skip
WHEN = {
    "the proposed verdict: the data is at hand": DEFAULT,
    "the data is private: the posterior alone": "influence",
    "the model is a black box: the data alone": NEIGHBORS,
    "no posterior": "error_profile",
    "images, with features of your own": "influence + neighbors in features",
    "a class-conditional model": "influence + neighbors + conditional − unconditional",
    "expected residual, for comparison": "expected_residual",
}
WIDE, SQUARES = "influence (13 levels) + neighbors", "Σ max(0, z)², influence and neighbors"
TARGETS = {"digits": 0.95, "digits-early": 0.80, "mnist": 0.83, "shapes": 0.90}
TARGET_SYNTHETIC = 0.97
KEPT_TARGETS = {"digits": 0.0, "digits-early": 13.0, "mnist": 7.0}


def summary(quick: bool, jobs: Sequence[Job]) -> list[str]:
    """Which score to use when, in one table."""
    studies = complete(quick)
    synthetic = [study for study in studies if study in SYNTHETIC]
    chosen, found = table_of(quick, choosing=True), table_of(quick, choosing=False)
    winner, *others = rank({n: chosen[n] for n in CANDIDATES if n in chosen}, studies)
    place = [winner, *others].index(DEFAULT) + 1
    recommended, _ = keeping.recommend(keeping.every(quick))
    ratio = ratios(jobs, "mnist")
    price = (
        {}
        if not ratio
        else {
            DEFAULT: ratio[describe(FEW, REPEATS)] + ratio["neighbors"],
            WIDE: ratio[describe(LEVELS, REPEATS)] + ratio["neighbors"],
            SQUARES: ratio[describe(FEW, REPEATS)] + ratio["neighbors"],
            "influence": ratio[describe(FEW, REPEATS)],
            NEIGHBORS: ratio["neighbors"],
            "expected_residual": ratio["expected_residual"] - 1,
        }
    )
    rows = [
        [
            when, f"`{name}`", *(number(found.get(name, {}).get(study)) for study in REAL),
            number(mean_over(found.get(name, {}), synthetic)),
            number(mean_over(found.get(name, {}), studies)),
            f"{price[name]:.2f}" if name in price else "–",
        ]
        for when, name in {f"highest mean AUROC of {len(CANDIDATES)} candidates": winner, **WHEN}.items()
    ]  # fmt: skip
    best = mean_over(found.get(winner, {}), studies)
    text = (
        f"Of {len(CANDIDATES)} candidates, fixed in `experiments/candidates.py` before anything was "
        f"measured, **{winner}** has the highest mean AUROC over the {len(studies)} data sets on seeds "
        f"{CHOOSING[0]} to {CHOOSING[-1]} ({mean_over(chosen[winner], studies):.3f}). On seeds "
        f"{REPORTING[0]} to {REPORTING[-1]}, which took no part in the choice, it has {number(best)}."
    )
    if winner != DEFAULT:
        text += (
            f" The proposed verdict, *{DEFAULT}*, is at place {place} of the choice with "
            f"{mean_over(chosen[DEFAULT], studies):.3f}, and reports "
            f"{number(mean_over(found[DEFAULT], studies))}. {_compare(winner, quick)}"
        )
    text += " Keep by: " + (
        f"**{recommended}**." if recommended else "no filter passes both conditions; see below."
    )
    return [
        "Which samples of a diffusion model are bad, when no formula says so? Images, days of weather and "
        "of power, and synthetic sets whose truth is known.",
        text,
        table(
            ["when", "score", *REAL, "synthetic sets", "all", "cost"],
            rows,
        ),
        "AUROC for bad samples, means over the reporting seeds. *Cost*: time beside plain sampling in 50 "
        "steps, on the network of mnist, on top of it. `flare.Reference.verdict` adds up the z of the "
        "scores, each compared with held-out real data.",
    ]  # fmt: skip


def _compare(winner: str, quick: bool) -> str:
    """How far the winner is ahead of the default on the reporting seeds, and where."""
    found = table_of(quick, choosing=False)
    ahead = {study: found[winner][study] - found[DEFAULT][study] for study in complete(quick)}
    most = max(ahead, key=lambda study: ahead[study])
    mean, rest = (
        statistics.fmean([value for study, value in ahead.items() if study not in left] or [0.0])
        for left in ((), (most,))
    )
    return (
        f"On the latter seeds the first is ahead by {mean:.3f}: by {ahead[most]:.3f} on {most} and by "
        f"{rest:+.3f} on average over the others. The proposed one stays the default."
    )


def targets(quick: bool, jobs: Sequence[Job]) -> list[str]:
    """What was aimed at, and what came out."""
    found, kept = table_of(quick, choosing=False)[DEFAULT], keeping.every(quick)
    rows = [
        [study, f"AUROC ≥ {goal:.2f}", number(found[study]), _met(found[study] >= goal)]
        for study, goal in TARGETS.items()
        if study in found
    ]
    rows += [
        [
            study, f"AUROC ≥ {TARGET_SYNTHETIC}", number(found[study]),
            _met(found[study] >= TARGET_SYNTHETIC),
        ]
        for study in SYNTHETIC
        if study in found
    ]  # fmt: skip
    rows += [
        [
            study, f"bad after keeping half ≤ {goal:g}%", f"{100 * kept[study][RANK].bad:.1f}%",
            _met(100 * kept[study][RANK].bad <= goal),
        ]
        for study, goal in KEPT_TARGETS.items()
        if study in kept
    ]  # fmt: skip
    rows += [*_beside_baselines(quick), *_cost_targets(quick, jobs)]
    return ["## Targets", f"For *{DEFAULT}*, kept by rank.", table(["", "target", "measured", ""], rows)]


def _beside_baselines(quick: bool) -> list[list[str]]:
    """Whether the verdict is ahead of every baseline, in the mean and everywhere."""
    studies, found = complete(quick), table_of(quick, choosing=False)
    mean = mean_over(found[DEFAULT], studies) or 0.0
    others = {name: mean_over(found[name], studies) for name in BASELINES if name in found}
    name, best = max(
        ((n, value) for n, value in others.items() if value is not None), key=lambda pair: pair[1]
    )
    ahead = len(_lost(quick))
    return [
        ["all", "mean above every baseline's", f"{mean:.3f}, {name} {best:.3f}", _met(mean > best)],
        ["all", "no baseline ahead by over one standard error", f"{ahead} ahead", _met(not ahead)],
    ]


def _cost_targets(quick: bool, jobs: Sequence[Job]) -> list[list[str]]:
    """What the verdict costs on a UNet, and what more levels would bring."""
    ratio, studies, found = ratios(jobs, "mnist"), complete(quick), table_of(quick, choosing=False)
    if not ratio:
        return []
    price = ratio[describe(FEW, REPEATS)] + ratio["neighbors"]
    gain = (mean_over(found[WIDE], studies) or 0.0) - (mean_over(found[DEFAULT], studies) or 0.0)
    return [
        ["mnist", "cost ≤ 1.0 × plain sampling", f"{price:.2f}", _met(price <= 1)],
        ["all", f"mean within 0.01 of that of {len(LEVELS)} levels", f"{gain:.3f} below", _met(gain <= 0.01)],
    ]


def _met(yes: bool) -> str:
    return "met" if yes else "**missed**"


def reported(quick: bool) -> list[str]:
    """The AUROCs of the reporting seeds, with intervals, and of the baselines."""
    studies = complete(quick)
    found = table_of(quick, choosing=False)
    shown = [DEFAULT, "influence", NEIGHBORS, "error_profile", "influence, sketch"]
    intervals = [
        [
            study, f"{100 * statistics.fmean(metrics.rate(run.bad) for run in reporting(study, quick)):.1f}",
            str(sum(int(run.bad.sum()) for run in reporting(study, quick))),
            *(str(interval(reporting(study, quick), name) or "–") for name in shown),
        ]
        for study in studies
    ]  # fmt: skip
    rows = [
        [
            name,
            *(number(found.get(name, {}).get(s)) for s in studies),
            number(mean_over(found.get(name, {}), studies)),
        ]
        for name in (DEFAULT, "influence", *BASELINES)
        if name in found
    ]
    return [
        "## The reporting seeds",
        f"Seeds {REPORTING[0]} to {REPORTING[-1]}; for {', '.join(TWICE)} also a second trained model. "
        "AUROC, the chance that a bad sample has a higher score than a good one: the mean over runs, and in "
        f"brackets the 2.5% and 97.5% quantiles of {choice.DRAWS:,} bootstrap resamples, which draw the "
        "samples of every run with replacement, bad and good ones alike. They tell of the samples, not of "
        "other models.",
        table(["", "bad, %", "bad, count", *shown], intervals),
        "Beside the baselines. The figure of a score that was measured on fewer samples is that of the "
        "verdict plus the difference of both on these samples:",
        table(["AUROC", *studies, "mean"], rows),
        f"{_fewer(quick)} LLLA, BayesDiff, generative uncertainty and HyperDM are compared on the paper's "
        "data in [the reproduction](reproduction.md).",
    ]


def _fewer(quick: bool) -> str:
    """On how many samples baselines were measured."""
    studies = complete(quick)
    said = []
    for label, key in (("The baselines", "rivals"), (f"The expensive ones ({', '.join(COSTLY)})", "costly")):
        sizes = {study: getattr(size_of(study, quick), key) for study in studies}
        counts = {study: sum(n for _, n in which) for study, which in sizes.items()}
        by_count: dict[int, list[str]] = {}
        for study, count in counts.items():
            by_count.setdefault(count, []).append(study)
        parts = "; ".join(f"{count} of {', '.join(which)}" for count, which in by_count.items())
        said.append(f"{label} have scored fewer samples: {parts}.")
    return " ".join(said)


def differences(quick: bool) -> list[str]:
    """The verdict minus each baseline, in pairs, on the same samples."""
    studies = complete(quick)
    rows = []
    for name in BASELINES:
        found = [_minus(study, name, quick) for study in studies]
        rows.append([name, *("–" if one is None else f"{one.mean:+.3f} ± {one.error:.3f}" for one in found)])
    lost = _lost(quick)
    said = "Nowhere is a baseline ahead by more than one standard error."
    if lost:
        said = f"A baseline is ahead of the verdict by more than one standard error: {'; '.join(lost)}."
    return [
        "## The verdict minus each baseline",
        "The difference of the AUROCs on the samples that both scored, ± its standard error, by bootstrap "
        "in pairs.",
        table(["verdict minus", *studies], rows),
        said,
    ]


@cache
def _minus(study: str, name: str, quick: bool) -> choice.Interval | None:
    """The AUROC of the verdict minus that of a baseline."""
    return interval(reporting(study, quick), DEFAULT, minus=name)


def _lost(quick: bool) -> list[str]:
    """Where a baseline is ahead by more than one standard error."""
    pairs = [(name, study, _minus(study, name, quick)) for name in BASELINES for study in complete(quick)]
    return [
        f"{name} on {study} ({-found.mean:.3f} ahead)"
        for name, study, found in pairs
        if found is not None and found.mean < -found.error
    ]


def choosing(quick: bool) -> list[str]:
    """All candidates on the choosing seeds."""
    studies = complete(quick)
    chosen, found = table_of(quick, choosing=True), table_of(quick, choosing=False)
    own = {name: chosen[name] for name in CANDIDATES if name in chosen}
    ranked = rank(own, studies)
    partial = [name for name in own if name not in ranked]
    rows = [
        [
            name, *(number(own[name].get(study)) for study in studies), number(mean_over(own[name], studies)),
            number(mean_over(found.get(name, {}), studies)),
        ]
        for name in [*ranked, *partial]
    ]  # fmt: skip
    error = sum(
        interval([r for r in load_runs(s, quick) if r.choosing], DEFAULT).error ** 2 for s in studies
    ) ** 0.5 / len(studies)
    best = mean_over(own[ranked[0]], studies)
    close = [name for name in ranked if best - mean_over(own[name], studies) <= error]
    few, wide = {}, {}
    for study in studies:
        size = size_of(study, quick)
        few.setdefault(size.choosing, []).append(study)
        wide.setdefault(len([s for s in CHOOSING if s in size.wide]), []).append(study)
    return [
        "## The choice",
        f"Seeds {CHOOSING[0]} to {CHOOSING[-1]} of one model each. The rule: of the candidates that exist "
        "on every data set, the highest mean. The others follow below. The last column is that of the "
        f"reporting seeds. Unless said, influence has {size_of('digits', quick).m:,} random parameters, s "
        f"and δ calibrated, {len(FEW)} levels ({_list(FEW)} of T) × {REPEATS} "
        f"noises and weights √min-SNR; {len(LEVELS)} levels are {_list(LEVELS)}. "
        "Features are those of a perceptron that was trained on the classes of the training data, and is "
        "not the judge.",
        table(["AUROC", *studies, "mean", "reported"], rows),
        f"The bootstrap standard error of such a mean is {error:.3f} for *{DEFAULT}*; {len(close)} "
        f"candidates are within it of the first: {', '.join(f'*{name}*' for name in close)}.",
        "Samples per seed: " + "; ".join(f"{n} of {', '.join(names)}" for n, names in few.items()) + ". "
        "Seeds with 13 levels: " + "; ".join(f"{n} of {', '.join(names)}" for n, names in wide.items()) + ". "
        "The figure of a candidate that was measured on some seeds only is that of the verdict plus the "
        "difference of both on these seeds.",
    ]


def _list(levels: Sequence[float]) -> str:
    return ", ".join(f"{level:g}" for level in levels)
