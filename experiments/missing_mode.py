"""Beyond the paper: a model that was trained without one mode of the grid, asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt

import flare
from flare import bench, plot
from flare.bench import baselines, metrics
from tools.document import table

from .claims import Claim
from .common import spread
from .lab import Found, Job, calibrate, load_or_train, pairs, training
from .methods import PRINTED

TITLE = "A mode that was never seen"
MODES = {"corner": 0, "edge": 1, "center": 4}
FILES = {"center": "centre"}  # the names of kept results, where they have another spelling
FREE = ("residual", "denoising error")  # scores without a posterior


def config(mode: int, steps: int) -> dict[str, Any]:
    """The grid without a mode."""
    return bench.configure("grid", samples=48_000, data={"without": [mode]}, steps=steps)


def missing_job(mode: int, steps: int, n: int, count: int) -> Found:
    """Scores of real points of all nine modes; the mode was in nobody's training data."""
    model = load_or_train(config(mode, steps))
    denoiser = model.denoiser
    x = bench.datasets.make("grid", 9 * n, seed=7)
    subset = flare.subsets.random(denoiser, fraction=0.1, seed=0)
    printed = flare.posteriors.dense(denoiser, subset, pairs(model, count), **PRINTED)
    posterior = calibrate(printed, denoiser)
    return {
        "modes": torch.arange(9 * n) % 9,
        "score.endpoint trace, calibrated": flare.score(
            denoiser, posterior, model.schedule, x, score="trace"
        ),
        "score.endpoint trace, s = 1, δ = 1e-6": flare.score(
            denoiser, printed, model.schedule, x, score="trace"
        ),
        "score.influence, calibrated": flare.score(
            denoiser, posterior, model.schedule, x, score="influence", data=model.data
        ),
        "score.expected_residual, calibrated": flare.score(
            denoiser, posterior, model.schedule, x, score="expected_residual"
        ),
        "score.residual": baselines.Residual(denoiser, model.schedule).score(x),
        "score.denoising error": baselines.DenoisingError(denoiser, model.schedule).score(x),
    }


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per mode."""
    steps = 300 if quick else 20_000
    size = {"n": 40, "count": 1_000} if quick else {"n": 400, "count": 20_000}
    names = {mode: f"without-{FILES.get(label, label)}" for label, mode in MODES.items()}
    return [training(config(mode, steps), name) for mode, name in names.items()] + [
        Job(name, missing_job, {"mode": mode, "steps": steps, **size}) for mode, name in names.items()
    ]


def aurocs(jobs: Sequence[Job]) -> dict[str, list[float]]:
    """AUROC of each score: points of the unseen mode against those of the others, one value per mode."""
    out: dict[str, list[float]] = {}
    for job in jobs:
        if job.run is missing_job:
            found = job.found()
            unseen = found["modes"] == job.config["mode"]
            for key, values in found.items():
                if key.startswith("score."):
                    out.setdefault(key.removeprefix("score."), []).append(metrics.auroc(values, unseen))
    return out


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """A table and a figure: the median score of every mode."""
    found = aurocs(jobs)
    chosen = [job for job in jobs if job.run is missing_job]
    figure, axes = plt.subplots(1, len(chosen), figsize=(2.8 * len(chosen), 2.5))
    for ax, job, label in zip(axes, chosen, MODES, strict=True):
        one = job.found()
        values = one["score.endpoint trace, calibrated"]
        medians = torch.stack([values[one["modes"] == mode].median() for mode in range(9)])
        image = (medians / medians.median()).log10().view(3, 3).T.flip(0)
        shown = ax.imshow(image, cmap=plot.COLORS, extent=(-1.5, 1.5, -1.5, 1.5))
        figure.colorbar(shown, ax=ax, shrink=0.75).set_label("log10 score / median", fontsize=8)
        ax.set_title(f"without the {label}", fontsize=9)
        ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlabel="$x_1$", ylabel="$x_2$")
    figure.tight_layout()
    figure.savefig(pictures / "missing-mode.png", dpi=150)
    plt.close(figure)
    rows = [[label, spread(v), *(f"{auroc:.3f}" for auroc in v)] for label, v in found.items()]
    return [
        f"Three models, each trained without one of the nine modes ({', '.join(MODES)}). All nine modes are "
        "then scored as existing data. AUROC for the unseen mode against the others, mean ± standard "
        "deviation over the models.",
        table(["score", "mean", *MODES], rows),
        "![The score of each mode](images/reproduction/missing-mode.png)",
    ]  # fmt: skip


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """The score shows what was missing."""
    found = aurocs(jobs)
    ours = sum(found["endpoint trace, calibrated"]) / len(MODES)
    free = max(FREE, key=lambda name: sum(found[name]))
    return [
        Claim(
            "Epistemic uncertainty is high where data was missing",
            "said, not measured",
            f"AUROC for a mode that was left out {ours:.3f} (endpoint trace, calibrated); without a "
            f"posterior {sum(found[free]) / len(MODES):.3f} ({free})",
            "holds"
            if ours > 0.9
            else f"does not hold: {ours:.2f} is too little to tell the unseen mode from the others",
        )
    ]
