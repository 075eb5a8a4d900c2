"""The pictures of the page *Which samples can I trust?*, without a browser. `python -m experiments.concepts`.

They have no background and colors of middle brightness, so that they can be read in light and in dark mode.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from torch import Tensor

import flare

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
INK, FAINT, CALM, DOUBT, REAL = "#7d8796", "#9aa3b0", "#3f83e0", "#e0702f", "#2f9e72"
STYLE = {
    "svg.hashsalt": "flare",  # the same picture is the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.transparent": True,
}
MODELS = 24  # draws from the posterior in the picture of trajectories
SHRINK = 0.1  # of their standard deviations: the posterior of so small a network is wide


@contextmanager
def picture(path: Path, columns: int, size: tuple[float, float]) -> Iterator[list[Axes]]:
    """Axes in a row; what is drawn on them is written to an svg file."""
    with mpl.rc_context({**STYLE, "backend": "agg"}):
        figure, axes = plt.subplots(1, columns, figsize=size, squeeze=False)
        yield list(axes[0])
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def fit_grid() -> tuple[flare.Scorer, flare.Result]:
    """A scorer of the shipped nine clouds, and samples."""
    model = flare.bench.load("grid")
    held_out = flare.bench.datasets.grid(999, seed=1)
    scorer = flare.fit(
        model, model.data, held_out=held_out, weighting=model.weighting, subset=500, pairs=4000, check=False
    )  # fmt: skip
    return scorer, scorer.sample(1000, seed=0)


def draw_models(scorer: flare.Scorer, count: int) -> list[flare.Denoiser]:
    """Networks drawn from the posterior, nearer to the trained one by `SHRINK`."""
    draws = scorer.posterior.draw(count, torch.Generator().manual_seed(0)) * SHRINK
    changes = scorer.posterior.subset.scatter(draws.to(scorer.denoiser.dtype))
    models = []
    for index in range(count):
        net = copy.deepcopy(scorer.denoiser.module)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                if name in changes:
                    parameter += changes[name][index]
        models.append(flare.Denoiser(net, scorer.denoiser.prediction))
    return models


def draw_fan(path: Path, scorer: flare.Scorer, result: flare.Result) -> None:
    """The paths of two samples under many models: one stays together, the other fans out."""
    assert result.verdict is not None
    steps = scorer.steps()
    order = result.verdict.z.argsort()
    chosen = {CALM: int(order[len(order) // 2]), DOUBT: int(order[-1])}
    models = draw_models(scorer, MODELS)
    assert scorer.data is not None
    with picture(path, 1, (4.6, 4.6)) as (ax,):
        ax.scatter(*scorer.data[:450].T, s=3, color=FAINT, alpha=0.5, linewidths=0)
        for color, index in chosen.items():
            for denoiser in models:
                track = torch.cat(list(walk(denoiser, steps, index)))
                ax.plot(*track.T, color=color, linewidth=0.6, alpha=0.6)
                ax.plot(*track[-1], "o", color=color, markersize=4)
            ax.plot(*track[0], "o", color=color, markersize=8, fillstyle="none")
            words = "the models agree" if color == CALM else "the models disagree"
            ax.annotate(words, track[-1].tolist(), (12, -16), textcoords="offset points", color=color)
        ax.set_aspect("equal")
        ax.axis("off")


def walk(denoiser: flare.Denoiser, steps: flare.samplers.Steps, index: int) -> Iterator[Tensor]:
    """The states of one sample, from its noise on, (1, 2) each."""
    for frame in flare.trajectories(denoiser, steps, n=1, shape=(2,), seed=0, first=index):
        if frame.index == 0:  # a step of DDIM, x' = A·x + B·x̂0, read backwards
            yield (frame.x - frame.step.B[0] * frame.x0) / frame.step.A
        yield frame.x


def draw_directions(path: Path) -> None:
    """From the curvature of the loss to the posterior, and to directions, in two parameters."""
    turn = np.deg2rad(30)
    axes_ = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    curvature = axes_ @ np.diag([6.0, 0.6]) @ axes_.T
    covariance = np.linalg.inv(curvature + 0.1 * np.eye(2))
    across = np.linspace(-2.6, 2.6, 120)
    grid = np.stack(np.meshgrid(across, across), axis=-1)
    loss = np.einsum("...i,ij,...j->...", grid, curvature, grid) / 2
    with picture(path, 3, (9, 3.2)) as (first, second, third):
        first.contour(across, across, loss, levels=[0.3, 1, 2.2, 4, 7], colors=INK, linewidths=0.9)
        first.set_title("H: how fast the loss rises", fontsize=10)
        width, height = 4 * np.sqrt(np.linalg.eigvalsh(covariance))
        for ax in (second, third):
            ax.add_patch(Ellipse((0, 0), width, height, angle=30, fill=ax is second, color=CALM, alpha=0.35))
        second.set_title("Σ: which parameters fit as well", fontsize=10)
        draws = np.random.default_rng(4).multivariate_normal([0, 0], covariance, 8)
        for x, y in draws:
            third.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": CALM})
        third.set_title("D: a few draws stand for all of them", fontsize=10)
        for ax in (first, second, third):
            ax.plot(0, 0, "o", color=DOUBT, markersize=5)
            ax.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), xticks=[], yticks=[], aspect="equal")
            ax.set(xlabel="one parameter", ylabel="another parameter")


def draw_p_value(path: Path, scorer: flare.Scorer, result: flare.Result) -> None:
    """The verdict's z of real data, and of one sample: the share of real data beyond it is its p-value."""
    assert result.verdict is not None
    assert scorer.data is not None
    real = scorer.score(flare.bench.datasets.grid(999, seed=2)).verdict
    assert real is not None
    z, p = result.verdict.z, result.p_value
    shown = int((p - 0.08).abs().argmin())
    edges = np.linspace(-5, 9, 57)
    with picture(path, 1, (7, 3.2)) as (ax,):
        counts, _ = np.histogram(real.z.clamp(-5, 8.9), edges)
        beyond = edges[:-1] >= float(z[shown])
        ax.bar(edges[:-1], counts, np.diff(edges), align="edge", color=REAL, alpha=0.45, label="real data")
        ax.bar(
            edges[:-1][beyond], counts[beyond], np.diff(edges)[beyond], align="edge", color=REAL,
            label="real data that looks at least as doubtful",
        )  # fmt: skip
        ax.axvline(float(z[shown]), color=DOUBT, linewidth=2)
        ax.annotate(
            f"a generated sample, p = {p[shown]:.2f}", (float(z[shown]), counts.max() * 0.8), (8, 0),
            textcoords="offset points", color=DOUBT,
        )  # fmt: skip
        ax.set(xlabel="the verdict: more doubtful to the right", ylabel="real samples")
        ax.set_ylim(0, 1.35 * counts.max())
        ax.legend(frameon=False, labelcolor=INK, loc="upper left")


def main() -> None:
    """Draw all of them."""
    torch.manual_seed(0)
    scorer, result = fit_grid()
    draw_fan(IMAGES / "concept-fan.svg", scorer, result)
    draw_directions(IMAGES / "concept-directions.svg")
    draw_p_value(IMAGES / "concept-p-value.svg", scorer, result)


if __name__ == "__main__":
    main()
