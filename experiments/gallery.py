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

from flare import bench, plot
from flare.bench import baselines, metrics, oracles
from tools.document import table

from .bench import (
    KEPT,
    SEEDS,
    SIZES,
    before,
    bench_job,
    verdicts_of,
)  # fmt: skip
from .bench import jobs as bench_jobs
from .claims import Claim
from .common import keep, spread
from .lab import Found, Job
from .methods import DEFAULT
from .models import fit_posteriors, model_of
from .paper_rule import ExactTangent, PaperSums, Rows, traces
from .recursion_case import GOOD

TITLE = "The figures of the paper"
TANGENT = "FLARE, tangent"
SHOWN = ("BayesDiff", "LLLA, appendix", "FLARE, main", "FLARE, appendix", TANGENT, DEFAULT)
DDIM_SEEDS = SEEDS[:3]  # those of the DDPM runs, with the same starts
FAR = 4  # standard deviations of a mode: bad, with both samplers
LINES = 250  # curves in a panel


def ddim_job(seed: int, n: int, count: int, steps: int) -> Found:
    """The methods of the grid figure with DDIM, η = 0."""
    model = model_of("grid")
    denoiser, fitted = model.denoiser, fit_posteriors("grid", model, count)
    ddim = model.sampler("ddim", steps)
    options = {"n": n, "shape": model.shape, "seed": seed}
    exact = {"FLARE": fitted["random"], "LLLA": fitted["last"]}
    roots = {label: (p.subset, p.exact_directions()) for label, p in exact.items()}
    scores: dict[str, Tensor] = {}
    for rule in (PaperSums(denoiser, ddim, [Rows(denoiser, roots)]), ExactTangent(denoiser, roots)):
        x, found = traces(model, ddim, rule, fitted["random"], n=n, seed=seed)
        scores |= found
    theirs = baselines.bayesdiff(
        denoiser, ddim, fitted["bayesdiff"], score="trace", directions="exact", **options
    )
    scores["BayesDiff"] = theirs.score
    judged = verdicts_of("grid", model, count)
    scores[DEFAULT] = judged.reference.verdict(judged.scores(x)).z
    samples = {method: theirs.samples if method == "BayesDiff" else x for method in SHOWN}
    return {
        **{f"samples.{method}": samples[method] for method in SHOWN},
        **{f"score.{method}": scores[method] for method in SHOWN},
    }


def jobs(quick: bool) -> list[Job]:
    """The DDIM twin; the other figures are drawn from the samples of `bench`."""
    count = SIZES["quick" if quick else "full"]["pairs"]
    size = {"n": 200, "steps": 20} if quick else {"n": 1_000, "steps": 100}
    seeds = DDIM_SEEDS[:1] if quick else DDIM_SEEDS
    own = [Job(f"ddim-{seed}", ddim_job, {"seed": seed, "count": count, **size}, stage=3) for seed in seeds]
    # one seed of every data set for the pictures, and the twins of DDIM
    shared = [
        job
        for job in bench_jobs(quick)
        if job.run is bench_job
        and (job.config["seed"] == SEEDS[0] or (job.config["name"] == "grid" and job.config["seed"] in seeds))
    ]
    sources = [job for job in bench_jobs(quick) if job.stage == 2]
    return [*before(quick), *sources, *own, *shared]


def draw(found: Found, sources: dict[str, str], masks: dict[str, Tensor], path: Path) -> None:
    """Samples colored by the rank of the score above, those kept below."""
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


def masks_of(name: str, found: Found) -> dict[str, Tensor]:
    """What each method keeps: the samples with the lowest scores."""
    return {m: keep(found[f"score.{m}"], KEPT[name]) for m in SHOWN}


def draw_data(path: Path) -> None:
    """Some samples of every data set."""
    figure, axes = plt.subplots(1, len(oracles.BENCHMARKS), figsize=(2.2 * len(oracles.BENCHMARKS), 2.1))
    for ax, name in zip(axes, oracles.BENCHMARKS, strict=True):
        x = bench.datasets.make(name, 450 if name == "grid" else 40)
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
    parts = [
        "![The four data sets](images/reproduction/data.png)",
        "*Some training samples of each data set.*",
        f"In the figures below, the rows are all samples of seed {SEEDS[0]} and those with the lowest "
        f"scores, colored by the rank of the score; of curves at most {LINES} are drawn. BayesDiff draws "
        "its own samples; the other methods share theirs. The verdict is filtered by rank here, not by "
        "region.",
    ]
    benches = {
        job.config["name"]: job for job in jobs if job.run is bench_job and job.config["seed"] == SEEDS[0]
    }
    for name, job in benches.items():
        found = job.found()
        draw(found, found["sources"], masks_of(name, found), pictures / f"samples-{name}.png")
        parts += [
            f"### {name}{' (DDPM)' if name == 'grid' else ''}",
            f"![Samples of {name} by score, before and after](images/reproduction/samples-{name}.png)",
            f"*All samples of {name}, and the {100 * KEPT[name]:.0f}% with the lowest scores.*",
        ]
        if name == "grid":
            twins = [job for job in jobs if job.run is ddim_job]
            found = twins[0].found()
            own = {m: m for m in SHOWN}
            draw(found, own, masks_of("grid", found), pictures / "samples-grid-ddim.png")
            parts += [
                f"### grid (DDIM, {twins[0].config['steps']} steps)",
                "![Samples of the grid by DDIM](images/reproduction/samples-grid-ddim.png)",
                f"*All samples of the grid by DDIM, and the {100 * KEPT['grid']:.0f}% with the lowest "
                "scores.*",
                f"The same {len(twins)} seeds, starts and number of samples with both samplers. Bad is over "
                f"{FAR}σ from every mode: one threshold for both. The AUROCs with DDPM differ from those of "
                "the sections before, which call bad what is farther from the truth than 99.9% of real "
                "samples.",
                table(
                    ["method", "AUROC with DDIM", "AUROC with DDPM"],
                    [[m, *(_cell(v[m]) for v in aurocs(jobs))] for m in SHOWN],
                ),
            ]  # fmt: skip
    return parts


def aurocs(jobs: Sequence[Job]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """AUROC of each method with DDIM and with DDPM, one value per seed with bad and other samples."""
    ddim = [(job.found(), {m: m for m in SHOWN}) for job in jobs if job.run is ddim_job]
    seeds = [job.config["seed"] for job in jobs if job.run is ddim_job]
    ddpm = [
        (found, found["sources"])
        for job in jobs
        if job.run is bench_job and job.config["name"] == "grid" and job.config["seed"] in seeds
        for found in [job.found()]
    ]
    return tuple({m: _detected(found, m) for m in SHOWN} for found in (ddim, ddpm))  # type: ignore[return-value]


def _detected(found: Sequence[tuple[Found, dict[str, str]]], method: str) -> list[float]:
    out = []
    for one, sources in found:
        bad = oracles.distance("grid", one[f"samples.{sources[method]}"]) > FAR
        if 0 < bad.sum() < len(bad):
            out.append(metrics.auroc(one[f"score.{method}"], bad))
    return out


def _cell(values: Sequence[float]) -> str:
    return spread(values) if values else "–"


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """DDIM behaves as DDPM."""
    ddim, ddpm = ({m: statistics.fmean(v) for m, v in one.items() if v} for one in aurocs(jobs))
    both = [m for m in SHOWN if m in ddim and m in ddpm]
    listed = ", ".join(f"{m} {ddim[m]:.2f} (DDPM {ddpm[m]:.2f})" for m in both)
    good = [m for m in both if m != DEFAULT and ddpm[m] >= GOOD]
    alike = [m for m in good if ddim[m] >= ddpm[m] - 0.1]
    if not good:
        verdict = "cannot be judged: with DDPM no rule finds the bad samples"
    elif alike == good:
        verdict = f"holds for what works with DDPM: {', '.join(alike)}"
    else:
        lost = ", ".join(m for m in good if m not in alike)
        verdict = f"does not hold for {lost}" + (f"; it does for {', '.join(alike)}" if alike else "")
    return [
        Claim(
            "DDIM behaves as DDPM: the score filters as faithfully",
            "a figure",
            f"AUROC on the grid, same seeds: {listed}",
            verdict,
        )
    ]
