"""The paper's recursion as it prints it, in every reading, with all of Σ: which one finds bad samples?

Coefficients of the main text, of Appendix A, and the weighting of the released code; a random subset, one
that is redrawn at every step, all parameters, and the last layer; the paper's schedule, a linear one, and one
with β ≤ 0.02, each with a model that was trained on it; and one run without clipping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import flare
from flare import bench
from flare.bench import oracles
from tools.document import table

from .claims import Claim
from .common import spearman
from .lab import Found, Job, training
from .methods import PRINTED
from .models import config_of, fit_block, fit_everything, fit_posteriors, model_of, truth_of
from .paper_rule import Directions, ExactTangent, LastLayer, PaperSums, Redrawn, Rows, Source, traces
from .recursion_case import (
    ENOUGH,
    EXACT,
    FEW,
    READINGS,
    SHIPPED,
    Results,
    cell,
    detection_table,
    few,
    schedules,
)

TITLE = "The recursion as printed"
SCHEDULES = ("grid-linear", "grid-capped", "sines-linear", "sines-capped")
SEEDS = (5, 6, 7)
THOROUGH = SEEDS[:1]  # with all parameters and with redrawn subsets
SIZES = {"grid": 1_000, "sines": 400, "chirp": 400, "damped": 400}
MANY = 256  # directions of all parameters
PUSHED = 64  # directions where d rows of J are too many
ROWS = 20  # coordinates up to which all of J is computed


def recursion_job(
    name: str, seed: int, n: int, count: int, walk: int | None, thorough: bool, clipped: bool = True
) -> Found:
    """The traces of every reading on one model and seed."""
    model = model_of(name)
    steps = model.sampler("ddpm", walk) if clipped else flare.samplers.ddpm(model.schedule, walk)
    fitted = fit_posteriors(name, model, count)
    options: dict[str, Any] = {"n": n, "seed": seed}
    random, last = fitted["random"], fitted["last"]
    if model.shape[0] > ROWS:
        x, found = _push(name, model, steps, random, count, options)
    else:
        x, found = _exactly(name, model, steps, random, last, count, thorough, options)
    distance = oracles.distance(truth_of(name), x)
    real = bench.datasets.make(truth_of(name), min(8_000, 4 * count), seed=2)
    threshold = oracles.threshold(truth_of(name), real)
    return {"samples": x, "distance": distance, "threshold": float(threshold), **_named(found)}


def _push(
    name: str, model: bench.Benchmark, steps: Any, random: Any, count: int, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """By directions, in two halves, which show how much they know; the last layer exactly."""
    generator = torch.Generator().manual_seed(options["seed"])
    halves = {f"half {i}": (random.subset, random.directions(PUSHED // 2, generator)) for i in range(2)}
    sources: list[Source] = [
        Directions(model.denoiser, halves),
        LastLayer(model.denoiser, "LLLA", fit_block(name, model, count)),
    ]
    x, found = traces(model, steps, PaperSums(model.denoiser, steps, sources), random, **options)
    for weighting in ("main", "appendix", "released"):
        pair = [found[f"half {i}, {weighting}"] for i in range(2)]
        found[f"FLARE, {weighting}"] = (pair[0] + pair[1]) / 2
    return x, found


def _exactly(
    name: str,
    model: bench.Benchmark,
    steps: Any,
    random: Any,
    last: Any,
    count: int,
    thorough: bool,
    options: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """With all of Σ, and with few directions beside it; all parameters by many directions."""
    denoiser = model.denoiser
    generator = torch.Generator().manual_seed(options["seed"])
    exact = {"FLARE": random, "LLLA": last}
    roots = {label: (p.subset, p.exact_directions()) for label, p in exact.items()}
    few = {f"{k} directions": (random.subset, random.directions(k, generator)) for k in FEW}
    sources: list[Source] = []
    tangent = dict(roots)
    if thorough:
        whole = fit_everything(name, model, count)
        few["all parameters"] = (whole.subset, whole.directions(MANY, generator))
        tangent["all parameters"] = (whole.subset, whole.exact_directions())
        H = (whole.eigenvectors * whole.eigenvalues) @ whole.eigenvectors.T
        sources.append(Redrawn(denoiser, "redrawn", H, random.size, **PRINTED))
    sources.append(Rows(denoiser, {**roots, **few}))
    x, found = traces(model, steps, PaperSums(denoiser, steps, sources), random, **options)
    _, more = traces(model, steps, ExactTangent(denoiser, tangent), random, **options)
    return x, found | more


def everything_job(name: str, seed: int, n: int, count: int, walk: int | None) -> Found:
    """All parameters with all of Σ, for a few samples: what many directions are worth."""
    model = model_of(name)
    steps = model.sampler("ddpm", walk)
    whole = fit_everything(name, model, count)
    generator = torch.Generator().manual_seed(seed)
    roots = {
        "exact": (whole.subset, whole.exact_directions()),
        "drawn": (whole.subset, whole.directions(MANY, generator)),
    }
    sums = PaperSums(model.denoiser, steps, [Rows(model.denoiser, roots)])
    _, found = traces(model, steps, sums, whole, n=n, seed=seed)
    return {
        weighting: spearman(found[f"exact, {weighting}"], found[f"drawn, {weighting}"])
        for weighting in ("main", "appendix", "released")
    }


def _named(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"score.{label}": score for label, score in found.items()}


def fit_job(name: str, count: int, thorough: bool) -> Found:
    """Fit what the readings need, for later jobs."""
    model = model_of(name)
    fit_posteriors(name, model, count)
    fit_block(name, model, count)
    if thorough:
        fit_everything(name, model, count)
    return {}


def job(name: str, seed: int, quick: bool, clipped: bool = True) -> Job:
    """The job of one model and seed; `bench` takes the scores from it."""
    thorough = seed in THOROUGH and is_thorough(name, quick) and clipped
    config = {"name": name, "seed": seed, "thorough": thorough, "clipped": clipped}
    size: dict[str, Any] = {"n": SIZES[truth_of(name)], "count": 20_000, "walk": None}
    if quick:
        size = {"n": 200, "count": 1_000, "walk": 40}
    label = f"recursion-{name}-{seed}" + ("" if clipped else "-unclipped")
    return Job(label, recursion_job, config | size, stage=2)


def seeds_of(name: str, quick: bool) -> tuple[int, ...]:
    """The seeds of a model: two where directions are pushed, and on other schedules."""
    if quick:
        return SEEDS[:1]
    return SEEDS if name in SHIPPED and truth_of(name) in EXACT else SEEDS[:2]


def is_thorough(name: str, quick: bool) -> bool:
    """Whether all parameters of a model are uncertain together, too."""
    return name in SHIPPED and truth_of(name) in EXACT and not quick


def jobs(quick: bool) -> list[Job]:
    """Training, fits, one job per model and seed, one run without clipping."""
    names = (*SHIPPED, *SCHEDULES)
    count = 1_000 if quick else 20_000
    out = [training(config, name) for name in names if (config := config_of(name)) is not None]
    if quick:
        names = SHIPPED
        out = [one for one in out if one.name in ("train-sines-early", "train-sines-16")]
    for name in names:
        config = {"name": name, "count": count, "thorough": is_thorough(name, quick)}
        out.append(Job(f"fit-recursion-{name}", fit_job, config))
        out += [job(name, seed, quick) for seed in seeds_of(name, quick)]
    if not quick:
        out.append(job("grid", SEEDS[0], quick, clipped=False))
        for name, n in EXACT.items():
            config = {"name": name, "seed": SEEDS[0], "n": n, "count": count, "walk": None}
            out.append(Job(f"recursion-everything-{name}", everything_job, config, stage=2))
    return out


# --- what is written ---------------------------------------------------------------------------------------


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """Detection in every reading, how many directions are enough, and the schedules."""
    found = Results(jobs)
    names = [name for name in SHIPPED if name in found.by_name]
    parts = [
        "V' = a²V + b²·diag(JΣJᵀ), s = 1, δ = 1e-6. The *main* text prints a = α_t^(−1/2) and b = "
        "β_t/(√α_t·√(1−ᾱ_t)); *Appendix A* prints a = (1 − β_t/√(1−ᾱ_t))/√α_t and b = √(β_t/α_t); *released* "
        "is the weighting of the authors' code; *tangent* is the exact first-order rule, for comparison. All "
        f"of Σ where there are at most {ROWS} coordinates (all parameters: {MANY} directions in the "
        f"recursions, all of Σ in the tangent rule, seed {THOROUGH[0]}); {PUSHED} "
        "directions on chirp and damped, whose last layer is exact, too. AUROC for bad samples (farther from "
        "the truth than 99.9% of real samples), and for the fifth that is farthest from the truth: mean ± "
        f"standard deviation over seeds. With fewer than {ENOUGH} bad samples the first says little, and the "
        "claims above take the second. The tangent rule on chirp and damped was run with directions: it is "
        "in the tables of the section before. A redrawn subset has no tangent rule, which follows the same "
        "directions along the trajectory.",
        detection_table(found, names),
        *_directions(jobs, found, names),
    ]
    others = [name for name in SCHEDULES if name in found.by_name]
    if others:
        parts += [
            "### Other schedules, models retrained",
            "`linear` has β from 1e-4 to 0.02, `capped` is the cosine schedule with β ≤ 0.02. The sines are "
            "stopped early, as sines-early is.",
            detection_table(found, others),
        ]
    open_run = Results(jobs, clipped=False)
    if open_run.by_name:
        names, twins = list(open_run.by_name), [one for one in jobs if one.config.get("seed") == SEEDS[0]]
        parts += [
            "### Without clipping x̂0",
            f"Seed {SEEDS[0]}, without clipping:",
            detection_table(open_run, names),
            "With clipping at the same seed:",
            detection_table(Results(twins), names, ("FLARE", "LLLA")),
        ]
    return parts


def _directions(jobs: Sequence[Job], found: Results, names: Sequence[str]) -> list[str]:
    """The Spearman correlations of traces by few directions with those by all of Σ."""
    rows = []
    for name in names:
        for reading in READINGS[:3]:
            few = [
                cell(found.agreement(name, f"{k} directions, {reading}", f"FLARE, {reading}")) for k in FEW
            ]
            halves = cell(found.agreement(name, f"half 0, {reading}", f"half 1, {reading}"))
            rows.append([name, reading, *few, halves])
    parts = [
        "### How many directions are enough",
        "Spearman correlation of the trace by k random directions with that by all of Σ; on chirp and damped "
        f"that of two halves of {PUSHED // 2} directions, since all of Σ is too much there.",
        table(["model", "coefficients", *(f"k = {k}" for k in FEW), "two halves"], rows),
    ]
    whole = {one.config["name"]: one.found() for one in jobs if one.run is everything_job}
    if whole:
        listed = "; ".join(
            f"{name} " + ", ".join(f"{values[reading]:.3f} ({reading})" for reading in READINGS[:3])
            for name, values in whole.items()
        )
        parts.append(
            f"Over all parameters, {MANY} directions against all of Σ, for "
            f"{' and '.join(f'{n} samples of {name}' for name, n in EXACT.items())}: {listed}."
        )
    return parts


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """How many directions are enough, and what the schedule changes."""
    found = Results(jobs)
    out = [few(found)]
    if any(name in found.by_name for name in SCHEDULES):
        out.append(schedules(found))
    return out
