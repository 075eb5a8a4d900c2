"""Beyond the paper: epistemic uncertainty must fall when data grows. Sines, halved again and again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt

import flare
from flare import bench
from flare.bench import baselines
from tools.document import table

from .claims import Claim
from .lab import Found, Job, load_or_train, pairs, training
from .methods import DIRECTIONS

TITLE = "More data, less uncertainty"
SIZES = (5_000, 2_500, 1_250, 625, 312)
SEEDS = (0, 1, 2)
LABELS = {
    "trace": "tangent trace of samples",
    "endpoint": "endpoint score of held-out data",
    "variance": "posterior's part of the expected residual of held-out data",
    "residual": "plain residual of held-out data (no posterior)",
}


def config(size: int, seed: int, steps: int) -> dict[str, Any]:
    """A model of `size` samples; data, weights and order by the seed."""
    return bench.configure(
        "sines", samples=size, data_seed=50 + seed, steps=steps, seed=50 + seed, warmup=100
    )


def size_job(size: int, seed: int, steps: int, n: int, count: int, walk: int | None) -> Found:
    """Medians of the scores with a calibrated posterior."""
    model = load_or_train(config(size, seed, steps))
    denoiser = model.denoiser
    subset = flare.subsets.random(denoiser, fraction=0.1, seed=seed)
    posterior = flare.posteriors.dense(denoiser, subset, pairs(model, count, seed))
    result = flare.sample(
        denoiser, model.sampler("ddpm", walk), posterior, n, model.shape, score="trace",
        directions=DIRECTIONS, seed=seed,
    )  # fmt: skip
    real = bench.datasets.make("sines", 1_000, seed=1)
    options: dict[str, Any] = {"directions": 16, "seed": seed}
    expected = flare.score(denoiser, posterior, model.schedule, real, score="expected_residual", **options)
    residuals = [baselines.Residual(denoiser, model.schedule, level=level) for level in (0.05, 0.1, 0.2)]
    plain = torch.stack([residual.score(real) for residual in residuals]).mean(0)
    return {
        "trace": result.score.median().item(),
        "endpoint": flare.score(denoiser, posterior, model.schedule, real, score="trace", **options)
        .median()
        .item(),
        "variance": (expected - plain).median().item(),
        "residual": plain.median().item(),
        "scale": posterior.scale,
        "prior_precision": posterior.prior_precision,
    }


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per size and seed."""
    steps = 200 if quick else 5_000
    size = {"n": 50, "count": 500, "walk": 20} if quick else {"n": 200, "count": 10_000, "walk": None}
    cells = [(N, seed) for N in (SIZES[::2] if quick else SIZES) for seed in (SEEDS[:1] if quick else SEEDS)]
    return [training(config(N, seed, steps), f"size-{N}-{seed}") for N, seed in cells] + [
        Job(f"size-{N}-{seed}", size_job, {"size": N, "seed": seed, "steps": steps, **size})
        for N, seed in cells
    ]


def collected(jobs: Sequence[Job]) -> dict[str, dict[int, list[float]]]:
    """Figure -> size -> one value per seed."""
    out: dict[str, dict[int, list[float]]] = {key: {} for key in LABELS}
    for job in jobs:
        if job.run is size_job:
            found = job.found()
            for key in LABELS:
                out[key].setdefault(job.config["size"], []).append(found[key])
    return out


def slope(by_size: dict[int, list[float]]) -> float:
    """Of log median against log size."""
    x = [math.log(size) for size in by_size]
    return statistics.linear_regression(x, [math.log(statistics.median(v)) for v in by_size.values()]).slope


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """A table and a figure."""
    found = collected(jobs)
    sizes = list(next(iter(found.values())))
    rows = [
        [
            LABELS[key],
            *(f"{statistics.median(v):.3g}" for v in found[key].values()),
            f"{slope(found[key]):+.2f}",
        ]
        for key in LABELS
    ]
    figure, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
    for key, color in zip(LABELS, ("#d1495b", "#edae49", "#00798c", "#8b95a5"), strict=True):
        medians = [statistics.median(found[key][size]) for size in sizes]
        ax.plot(sizes, [m / medians[0] for m in medians], "o-", label=LABELS[key], color=color, markersize=4)
        for size in sizes:
            single = [value / medians[0] for value in found[key][size]]
            ax.plot([size] * len(single), single, ".", color=color, alpha=0.4)
    ax.set(xscale="log", yscale="log", xlabel="training samples", ylabel="median score / that of all data")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    figure.legend(fontsize=7, loc="outside lower center", frameon=False)
    figure.savefig(pictures / "data-size.png", dpi=150)
    plt.close(figure)
    return [
        f"Sines models trained anew on {', '.join(f'{s:,}' for s in sizes)} samples, "
        f"{len(next(iter(found['trace'].values())))} "
        "seeds each (data, initial weights, subset); calibrated posteriors. Medians over the samples, "
        "then over the seeds; the last column is the slope in log-log.",
        table(["score", *(f"N = {size:,}" for size in sizes), "slope"], rows),
        "![Scores against the size of the training data](images/reproduction/data-size.png)",
        f"Much of the fall is built in: Σ = (sH + δI)⁻¹ with s = N/σ², and s itself grows like N^"
        f"{scale_slope(jobs):.2f} here. With s = 1, the paper's, it was not measured.",
    ]


def scale_slope(jobs: Sequence[Job]) -> float:
    """Of log s against log size."""
    found: dict[int, list[float]] = {}
    for job in jobs:
        if job.run is size_job:
            found.setdefault(job.config["size"], []).append(job.found()["scale"])
    return slope(found)


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """It falls with data, which no score without a posterior has to."""
    found = collected(jobs)
    slopes = {key: slope(found[key]) for key in LABELS}
    falling = all(slopes[key] < -0.1 for key in ("trace", "endpoint", "variance"))
    return [
        Claim(
            "Epistemic uncertainty falls as more data is observed",
            "said, not measured",
            ", ".join(f"{LABELS[key]}: slope {slopes[key]:+.2f}" for key in LABELS),
            "holds with a correction: with s = N/σ² in Σ a fall near 1/N is largely built in; with the "
            "paper's s = 1 it was not measured"
            if falling
            else "does not hold for "
            + ", ".join(LABELS[key] for key in ("trace", "endpoint", "variance") if slopes[key] >= -0.1),
        )
    ]  # fmt: skip
