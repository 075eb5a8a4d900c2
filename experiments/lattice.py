"""Beyond the paper: mode interpolation on a 5 × 5 grid of Gaussians."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import flare
from flare import bench, plot
from flare.bench import baselines, metrics
from tools.document import table

from .candidates import THREE
from .claims import Claim
from .common import keep, spread
from .lab import Found, Job, calibrate, load_or_fit, load_or_train, pairs, training
from .methods import DEFAULT, DIRECTIONS, PRINTED
from .verdicts import REFERENCE, SEED, Verdicts

TITLE = "Mode interpolation on a 5 × 5 grid"
SEEDS = (5, 6, 7)  # the choice of the score looked at 0 to 4 of the same model
SIDE, WIDTH = 5, 64
STEPS = 40_000  # of training
RIVALS = ("residual", "denoising error", "last 100 iterates", "neighbors")  # without a posterior


def config(steps: int) -> dict[str, Any]:
    """25 modes, as far apart as the nine are, and a network of twice the width."""
    return bench.configure("grid", samples=50_000, data={"side": SIDE}, steps=steps, width=WIDTH)


def lattice_job(seed: int, n: int, steps: int, count: int, walk: int | None) -> Found:
    """Scores of samples, and how far each is from the nearest center, in standard deviations."""
    model = load_or_train(config(steps))
    denoiser = model.denoiser
    subset = flare.subsets.random(denoiser, fraction=0.1, seed=0)
    printed = load_or_fit(
        "lattice",
        {"steps": steps, "count": count},
        lambda: flare.posteriors.dense(denoiser, subset, pairs(model, count), **PRINTED),
        denoiser,
    )
    ddpm = model.sampler("ddpm", walk)
    options = {"n": n, "shape": model.shape, "seed": seed}
    scores = {}
    for label, posterior in (("printed", printed), ("calibrated", calibrate(printed, denoiser))):
        result = flare.sample(
            denoiser, ddpm, posterior, score=("trace", "expected_residual"), directions=DIRECTIONS, **options
        )
        scores |= {f"{score}, {label}": values for score, values in result.scores.items()}
    free = baselines.last_iterates(denoiser, ddpm, **options)
    scores |= {"last 100 iterates": free.scores["last_100"]}
    scores["residual"] = baselines.Residual(denoiser, model.schedule).score(result.samples)
    judged = Verdicts(model, posterior, bench.datasets.make("grid", REFERENCE, seed=SEED, side=SIDE))
    found = judged.scores(result.samples)
    scores |= {**found, DEFAULT: judged.reference.verdict(found).z}
    scores["denoising error"] = baselines.DenoisingError(denoiser, model.schedule).score(result.samples)
    distance = torch.cdist(result.samples, bench.datasets.grid_centers(SIDE)).min(1).values
    return {
        "samples": result.samples,
        "distance": distance / bench.datasets.GRID_SD,
        **{f"score.{k}": v for k, v in scores.items()},
    }


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per seed; in turn, since the first fits the posterior."""
    steps, count = (300, 1_000) if quick else (STEPS, 20_000)
    seeds = SEEDS[:1] if quick else SEEDS
    size = {"steps": steps, "count": count, "n": 200 if quick else 1_000, "walk": 40 if quick else None}
    return [
        training(config(steps), "lattice"),
        *(
            Job(f"lattice-{seed}", lattice_job, {"seed": seed, **size}, stage=1 + (seed > SEEDS[0]))
            for seed in seeds
        ),
    ]  # fmt: skip


def aurocs(jobs: Sequence[Job]) -> tuple[dict[str, list[float]], list[float]]:
    """AUROC of every score for samples over 4σ from all centers, and their share in %, one value per seed."""
    out: dict[str, list[float]] = {}
    rates = []
    for job in jobs:
        if job.run is lattice_job:
            found = job.found()
            bad = found["distance"] > 4
            rates.append(100 * metrics.rate(bad))
            for key, values in found.items():
                if key.startswith("score.") and 0 < bad.sum() < len(bad):
                    out.setdefault(key.removeprefix("score."), []).append(metrics.auroc(values, bad))
    return out, rates


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """A table, and the samples before and after."""
    found, rates = aurocs(jobs)
    rows = [[k, spread(v)] for k, v in sorted(found.items(), key=lambda item: -sum(item[1]))]
    every = {job.config["seed"]: job.found() for job in jobs if job.run is lattice_job}
    masks = {seed: keep(one[f"score.{DEFAULT}"], 0.5) for seed, one in every.items()}
    seed, one = next(iter(every.items()))
    score = one[f"score.{DEFAULT}"]
    result = flare.Result(one["samples"], scores={"verdict": score})
    figure, axes = plt.subplots(1, 2, figsize=(7, 3))
    plot.samples(result, ax=axes[0])
    plot.samples(result, masks[seed], ax=axes[1])
    axes[0].set_title("all samples", fontsize="medium")
    axes[1].set_title("the lowest half", fontsize="medium")
    figure.tight_layout()
    figure.savefig(pictures / "lattice.png", dpi=150)
    plt.close(figure)
    return [
        f"A network of width {WIDTH} on {SIDE} × {SIDE} modes (50,000 points, standard deviation "
        f"{bench.datasets.GRID_SD}); samples over 4σ from every center are interpolations between modes: "
        f"{spread(rates, 1)}% over {len(rates)} seeds.",
        table(["score", "AUROC"], rows),
        "![Samples of the 5 × 5 grid](images/reproduction/lattice.png)",
        f"*Seed {seed}: all samples, and the half with the lowest verdicts.*",
        "The best half does not keep the modes alike. Of the samples of a mode it keeps "
        + "; ".join(f"{lost_modes(every[s]['samples'], mask)} (seed {s})" for s, mask in masks.items())
        + ". `result.keep(0.5)` keeps the same share of every region instead.",
    ]


def lost_modes(samples: Tensor, kept: Tensor) -> str:
    """The smallest and the largest share of a mode that a filter keeps, and the modes that it loses."""
    centers = bench.datasets.grid_centers(SIDE).to(samples)
    mode = torch.cdist(samples, centers).argmin(1)
    before = mode.bincount(minlength=len(centers))
    after = mode[kept].bincount(minlength=len(centers))
    shares = (after / before)[before > 0]
    lost = [f"({x:g}, {y:g})" for x, y in centers[(before > 0) & (after == 0)].tolist()]
    said = f"{100 * shares.min():.0f}% to {100 * shares.max():.0f}%"
    return f"{said}, and nothing of {', '.join(lost)}" if lost else f"{said}, something of every mode"


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """Interpolations are found, beside the baselines and beside each half of the verdict."""
    found, _ = aurocs(jobs)
    if not found:
        return []
    mean = {k: sum(v) / len(v) for k, v in found.items()}
    ours = mean[DEFAULT]
    rival, free = (
        max((k for k in mean if k in names), key=mean.__getitem__) for names in (RIVALS, RIVALS[:-1])
    )
    return [
        Claim(
            "Ours: the verdict finds interpolations between the modes of a larger grid, better than every "
            "baseline",
            "–",
            f"AUROC {ours:.3f}; "
            + ", ".join(f"{name} alone {mean[name]:.3f}" for name in THREE if name in mean)
            + f", the best score without data and posterior {mean[free]:.3f} ({free}). "
            "The model is one of those that the verdict was chosen on, with other seeds",
            "holds" if ours > mean[rival] else f"does not hold: {rival} ({mean[rival]:.3f}) is ahead",
        )
    ]
