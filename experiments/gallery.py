"""The figures of the paper: the data sets, the grid by DDPM and by DDIM, and the three series."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from torch import Tensor

from flare import bench, plot
from flare.bench import metrics, oracles
from tools.document import table

from . import powered
from .claims import Claim
from .common import keep, spread
from .lab import Found, Job
from .models import truth_of
from .table1 import COEFFICIENTS, GOOD, label, labels

TITLE = "The figures of the paper"
MAIN, APPENDIX = (label("FLARE", "as printed", c) for c in ("main", "appendix"))
SHOWN = (
    "BayesDiff, as printed", *(label("LLLA", "as printed", c) for c in ("main", "appendix")), MAIN, APPENDIX
)  # fmt: skip
SEEDS = (5, 6, 7)
SAMPLERS = {"ddpm": None, "ddim": 100}  # steps
FAR = 4  # standard deviations of a mode: bad, with both samplers
LINES = 250  # curves in a panel
KEPT = {"grid": 0.5, **powered.KEPT}


def gallery_job(name: str, sampler: str, steps: int | None, seed: int, n: int, count: int) -> Found:
    """The samples and scores of the paper's methods, H as printed and weighted, by one sampler."""
    model = powered.load(name, 0)
    table = model.sampler(sampler, steps)
    sources, scores = powered.score_methods(model, truth_of(name), seed, n, count, table)
    return {
        **{f"samples.{method}": sources[source] for method, (source, _) in scores.items()},
        **{f"score.{method}": values for method, (_, values) in scores.items()},
    }


def jobs(quick: bool) -> list[Job]:
    """The grid with both samplers and the same starts, and one seed of every series."""
    size = {"n": 200, "count": 200} if quick else {"n": 1_000, "count": 4_000}
    cases = [("grid", sampler, seed) for sampler in SAMPLERS for seed in (SEEDS[:1] if quick else SEEDS)]
    if not quick:
        cases += [(name, "ddpm", SEEDS[0]) for name in powered.SERIES]
    out = [job for job in powered.jobs(quick) if job.stage == 0]
    for name, sampler, seed in cases:
        steps = 20 if quick else SAMPLERS[sampler]
        config = {"name": name, "sampler": sampler, "steps": steps, "seed": seed}
        config |= size if name == "grid" else {**size, "n": LINES}
        out.append(Job(f"gallery-{name}-{sampler}-{seed}", gallery_job, config, stage=2))
    return out


def draw(found: Found, share: float, path: Path) -> None:
    """Samples colored by the rank of the score above, those kept below."""
    figure, axes = plt.subplots(2, len(SHOWN), figsize=(2.1 * len(SHOWN), 4), sharex=True, sharey=True)
    for column, method in enumerate(SHOWN):
        x, score = found[f"samples.{method}"], found[f"score.{method}"]
        colors = plot.COLORS(score.argsort().argsort() / len(score))
        for row, mask in enumerate((torch.ones(len(x), dtype=torch.bool), keep(score, share))):
            _draw_samples(axes[row, column], x, colors, mask)
        axes[0, column].set_title(method.replace(", ", "\n", 1), fontsize=8)
        axes[1, column].set_xlabel("$x_1$" if x.shape[1] == 2 else "τ", fontsize=8)
    axes[0, 0].set_ylabel("all samples", fontsize=8)
    axes[1, 0].set_ylabel(f"the {100 * share:.0f}% kept", fontsize=8)
    figure.tight_layout()
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), plot.COLORS), ax=axes, shrink=0.6, pad=0.01)
    bar.set_label("rank of the score, certain to uncertain", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def _draw_samples(ax: plt.Axes, x: Tensor, colors: Tensor, mask: Tensor) -> None:
    if x.shape[1] == 2:
        ax.scatter(*x[mask].T, c=colors[mask], s=3)
        ax.set_aspect("equal")
    else:
        tau = torch.linspace(0, 1, x.shape[1])
        for i in mask.nonzero().flatten()[:LINES]:
            ax.plot(tau, x[i], color=colors[i], linewidth=0.5)
    ax.tick_params(labelsize=7)


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
    """All figures, and the AUROCs with both samplers."""
    draw_data(pictures / "data.png")
    parts = [
        "![The four data sets](images/reproduction/data.png)",
        "*Some training samples of each data set.*",
        f"In the figures below, the rows are all samples of seed {SEEDS[0]} and those with the lowest "
        f"scores, colored by the rank of the score; of curves at most {LINES} are drawn. H is as printed. "
        "BayesDiff draws its own samples; the other methods share theirs.",
    ]
    for job in jobs:
        if job.run is not gallery_job or job.config["seed"] != SEEDS[0]:
            continue
        name, sampler = job.config["name"], job.config["sampler"]
        file = f"samples-{name}{'-ddim' if sampler == 'ddim' else ''}.png"
        draw(job.found(), KEPT[name], pictures / file)
        parts += [
            f"### {name} ({sampler.upper()})",
            f"![Samples of {name} by score](images/reproduction/{file})",
            f"*All samples of {name}, and the {100 * KEPT[name]:.0f}% with the lowest scores.*",
        ]
    found = aurocs(jobs)
    rows = [[m, *(_cell(found[sampler][m]) for sampler in SAMPLERS)] for m in labels()]
    return [
        *parts,
        "### DDIM and DDPM",
        f"AUROC on the grid, with the same seeds and starts. Bad is over {FAR}σ from every mode: one "
        "threshold for both. *Main* and *released* have the sampler's own coefficients; Appendix A has "
        "those of DDPM, whatever the sampler.",
        table(["method, H, coefficients", *(s.upper() for s in SAMPLERS)], rows),
    ]


def aurocs(jobs: Sequence[Job]) -> dict[str, dict[str, list[float]]]:
    """The AUROCs on the grid by sampler and method, one value per seed with bad and other samples."""
    out: dict[str, dict[str, list[float]]] = {sampler: {} for sampler in SAMPLERS}
    for job in jobs:
        if job.run is not gallery_job or job.config["name"] != "grid":
            continue
        found = job.found()
        for key in (key for key in found if key.startswith("score.")):
            method = key.removeprefix("score.")
            bad = oracles.distance("grid", found[f"samples.{method}"]) > FAR
            values = out[job.config["sampler"]].setdefault(method, [])
            if 0 < bad.sum() < len(bad):
                values.append(metrics.auroc(found[key], bad))
    return out


def _cell(values: Sequence[float]) -> str:
    return spread(values) if values else "–"


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """DDIM behaves as DDPM."""
    return [ddim(aurocs(jobs))]


def _say(method: str) -> str:
    _, reading, coefficients = method.split(", ")
    return f"H {reading}, {COEFFICIENTS[coefficients]}"


def ddim(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Claim:
    """Whether FLARE detects with DDIM, by DDIM's own coefficients, what it detects with DDPM."""
    mean = {s: {m: statistics.fmean(v) for m, v in by.items() if v} for s, by in found.items()}
    # Appendix A prints coefficients of DDPM alone
    own = [label("FLARE", reading, c) for c in ("main", "released") for reading in powered.READINGS]
    works = [m for m in own if mean["ddpm"][m] >= GOOD]
    lost = [m for m in works if mean["ddim"][m] < mean["ddpm"][m] - 0.1]
    text = ", ".join(f"{mean['ddim'][m]:.2f} (DDPM {mean['ddpm'][m]:.2f}; {_say(m)})" for m in works or own)
    if not works:
        verdict = f"not testable: AUROC {text}, it finds nothing with either"
    else:
        verdict = f"{'does not hold' if lost else 'holds'} where DDPM detects: AUROC {text}"
    theirs = {m: f"{mean['ddim'][m]:.2f} (DDPM {mean['ddpm'][m]:.2f})" for m in mean["ddim"]}
    return Claim(
        "DDIM behaves as DDPM: the score filters as faithfully",
        "a figure",
        "AUROC on the grid: " + ", ".join(f"{m} {cell}" for m, cell in theirs.items()),
        verdict,
    )
