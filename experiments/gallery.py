"""The figures of the paper: the data sets, the grid by DDPM and by DDIM, and the three series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from torch import Tensor

import flare
from flare import baselines, plot, zoo
from flare.evaluation import metrics, oracles
from tools.document import table

from .bench import (
    KEPT,
    SEEDS,
    SIZES,
    before,
    bench_job,
    fit_posteriors,
    model_of,
    regions_of,
    typical_score,
)  # fmt: skip
from .bench import jobs as bench_jobs
from .claims import Claim
from .common import spread
from .lab import Found, Job, calibrate
from .methods import DEFAULT, DIRECTIONS

TITLE = "The figures of the paper"
SHOWN = ("BayesDiff", "LLLA, decoupled", "FLARE, decoupled (as printed)", "FLARE, trace", DEFAULT)
DDIM_SEEDS = (0, 1, 2)
LINES = 250  # curves in a panel


def ddim_job(seed: int, n: int, count: int, steps: int) -> Found:
    """The methods of the grid figure with DDIM, η = 0."""
    model = model_of("grid")
    denoiser, posterior = model.denoiser, fit_posteriors("grid", model, count)
    ddim = model.sampler("ddim", steps)
    options = {"n": n, "shape": model.shape, "seed": seed}
    scores, samples = {}, {}

    def take(method: str, result: flare.Result, score: str = "trace") -> None:
        scores[method], samples[method] = result.scores[score], result.samples

    take("BayesDiff", baselines.bayesdiff(denoiser, ddim, posterior["bayesdiff"], score="trace", **options))
    for method, which, rule in (
        ("LLLA, decoupled", "last", "decoupled"),
        ("FLARE, decoupled (as printed)", "random", "decoupled"),
        ("FLARE, trace", "random", "tangent"),
    ):
        result = flare.sample(
            denoiser, ddim, posterior[which], rule=rule, score="trace", directions=DIRECTIONS, **options
        )
        take(method, result)
    result = flare.sample(
        denoiser, ddim, calibrate(posterior["random"], denoiser), score="expected_residual",
        directions=DIRECTIONS, **options,
    )  # fmt: skip
    take(DEFAULT, result, "expected_residual")
    figures = {}
    for method, values in scores.items():
        bad = oracles.distance("grid", samples[method]) > 4
        figures[method] = metrics.auroc(values, bad) if 0 < bad.sum() < n else None
    rate = metrics.rate(oracles.distance("grid", samples[DEFAULT]) > 4)
    tensors = {f"samples.{m}": x for m, x in samples.items()} | {f"score.{m}": s for m, s in scores.items()}
    return {"aurocs": figures, "rate": rate, **(tensors if seed == DDIM_SEEDS[0] else {})}


def jobs(quick: bool) -> list[Job]:
    """The DDIM twin; the other figures are drawn from the samples of `bench`."""
    count = SIZES["quick" if quick else "full"]["pairs"]
    size = {"n": 200, "steps": 20} if quick else {"n": 2_000, "steps": 100}
    own = [
        Job(f"ddim-{seed}", ddim_job, {"seed": seed, "count": count, **size}, stage=3)
        for seed in (DDIM_SEEDS[:1] if quick else DDIM_SEEDS)
    ]
    shared = [job for job in bench_jobs(quick) if job.run is bench_job and job.config["seed"] == SEEDS[0]]
    return [*before(quick), *own, *shared]


def draw(found: Found, sources: dict[str, str], masks: dict[str, Tensor], path: Path) -> None:
    """Samples coloured by the rank of the score above, those kept below."""
    figure, axes = plt.subplots(2, len(SHOWN), figsize=(2.1 * len(SHOWN), 4), sharex=True, sharey=True)
    for column, method in enumerate(SHOWN):
        x, score = found[f"samples.{sources[method]}"], found[f"score.{method}"]
        colors = plot.COLORS(score.argsort().argsort() / len(score))
        for row, mask in enumerate((torch.ones(len(x), dtype=torch.bool), masks[method])):
            ax = axes[row, column]
            if x.shape[1] == 2:
                ax.scatter(*x[mask].T, c=colors[mask], s=3)
                ax.set_aspect("equal")
            else:
                tau = torch.linspace(0, 1, x.shape[1])
                for i in mask.nonzero().flatten()[:LINES]:
                    ax.plot(tau, x[i], color=colors[i], linewidth=0.5)
            ax.tick_params(labelsize=7)
        axes[0, column].set_title(method.replace(", ", "\n").replace(" (", "\n("), fontsize=8)
        axes[1, column].set_xlabel("$x_1$" if x.shape[1] == 2 else "τ", fontsize=8)
    shares = 100 * float(masks[SHOWN[0]].double().mean())
    axes[0, 0].set_ylabel("all samples", fontsize=8)
    axes[1, 0].set_ylabel(f"the {shares:.0f}% kept", fontsize=8)
    figure.tight_layout()
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), plot.COLORS), ax=axes, shrink=0.6, pad=0.01)
    bar.set_label("rank of the score, certain to uncertain", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def masks_of(name: str, found: Found, sources: dict[str, str], count: int) -> dict[str, Tensor]:
    """What each method keeps: the lowest scores, and the default filter for the default score."""
    masks = {m: flare.keep_fraction(found[f"score.{m}"], KEPT[name]) for m in SHOWN}
    model = model_of(name)
    posterior = calibrate(fit_posteriors(name, model, count)["random"], model.denoiser)
    masks[DEFAULT] = flare.keep_fraction(
        found[f"score.{DEFAULT}"],
        KEPT[name],
        typical=typical_score(model, posterior, count),
        strata=regions_of(model, found[f"samples.{sources[DEFAULT]}"]),
    )
    return masks


def draw_data(path: Path) -> None:
    """Some samples of every data set."""
    figure, axes = plt.subplots(1, len(zoo.NAMES), figsize=(2.2 * len(zoo.NAMES), 2.1))
    for ax, name in zip(axes, zoo.NAMES, strict=True):
        x = zoo.datasets.make(name, 450 if name == "grid" else 40)
        if name == "grid":
            ax.scatter(*x.T, s=2, color=plot.KEPT)
            ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        else:
            ax.plot(torch.linspace(0, 1, x.shape[1]), x.T, color=plot.KEPT, linewidth=0.6, alpha=0.6)
            ax.set(xlabel="τ", ylabel="x")
        ax.set_title(name, fontsize="medium")
        ax.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """All figures."""
    draw_data(pictures / "data.png")
    parts = ["![The four data sets](images/reproduction/data.png)"]
    benches = {job.config["name"]: job for job in jobs if job.run is bench_job}
    for name, job in benches.items():
        found = job.found()
        count = job.config["count"]
        masks = masks_of(name, found, found["sources"], count)
        draw(found, found["sources"], masks, pictures / f"samples-{name}.png")
        parts += [
            f"### {name}{' (DDPM)' if name == 'grid' else ''}",
            f"![Samples of {name} by score, before and after](images/reproduction/samples-{name}.png)",
        ]
        if name == "grid":
            twins = [job for job in jobs if job.run is ddim_job]
            found = twins[0].found()
            own = {m: m for m in SHOWN}
            draw(found, own, masks_of("grid", found, own, count), pictures / "samples-grid-ddim.png")
            parts += [
                f"### grid (DDIM, {twins[0].config['steps']} steps)",
                "![Samples of the grid by DDIM](images/reproduction/samples-grid-ddim.png)",
                table(["method", "AUROC, over 4σ"], [[m, spread(v)] for m, v in aurocs(jobs).items()]),
            ]  # fmt: skip
    return parts


def aurocs(jobs: Sequence[Job]) -> dict[str, list[float]]:
    """AUROC of each method with DDIM, a value a seed."""
    found = [job.found()["aurocs"] for job in jobs if job.run is ddim_job]
    return {m: [one[m] for one in found if one[m] is not None] or [float("nan")] for m in SHOWN}


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """DDIM behaves as DDPM."""
    ddim = {m: statistics.fmean(v) for m, v in aurocs(jobs).items()}
    job = next(job for job in jobs if job.run is bench_job and job.config["name"] == "grid")
    found = job.found()
    bad = {s: found[f"distance.{s}"] > 4 for s in ("shared", "bayesdiff")}
    ddpm = {
        m: metrics.auroc(found[f"score.{m}"], bad[found["sources"][m]])
        for m in SHOWN
        if 0 < bad[found["sources"][m]].sum() < len(bad["shared"])
    }
    listed = ", ".join(f"{m} {ddim[m]:.2f} (DDPM {ddpm[m]:.2f})" for m in ddpm)
    tangent = "FLARE, trace"
    apart = abs(ddim[tangent] - ddpm.get(tangent, float("nan")))
    verdict = f"does not hold: the AUROC of the exact rule differs by {apart:.2f}"
    if apart < 0.1:
        verdict = f"holds with a correction: for the exact rule, whose AUROC differs by {apart:.2f}"
    return [
        Claim(
            "DDIM behaves as DDPM: the score filters as faithfully",
            "a figure",
            f"AUROC on the grid: {listed}",
            verdict,
        )
    ]
