"""Sheets of samples sorted by their score: the most plausible ones and the least."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from flare import plot

from . import realdata

ACROSS, DOWN = 10, 5
BAD = "#d03030"
_GAP = 2  # pixels between tiles
_TITLES = ("most plausible", "least plausible")


def ends(score: Tensor, count: int = ACROSS * DOWN) -> tuple[Tensor, Tensor]:
    """The rows of the lowest and of the highest scores, each from the lowest up."""
    order = score.argsort(stable=True)
    count = min(count, len(order) // 2)
    return order[:count], order[-count:]


def draw(x: Tensor, bad: Tensor, score: Tensor, path: Path) -> None:
    """The sheet that fits the samples x (n, *shape); what is bad, (n,) bool, is red."""
    draw_as = _draw_images if x.ndim == 4 else _draw_points if x.shape[1:] == (2,) else _draw_series
    draw_as(x, bad, score, path)


def _draw_images(x: Tensor, bad: Tensor, score: Tensor, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.6))
    for ax, rows, name in zip(axes, ends(score), _TITLES, strict=True):
        tile(ax, x[rows], bad[rows])
        ax.set_title(f"the {len(rows)} {name} of {len(x)}", fontsize=9)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def tile(ax: Axes, x: Tensor, bad: Tensor, across: int = ACROSS, down: int = DOWN) -> None:
    """Images x (n, C, H, W) in [−1, 1] as tiles; what is bad, (n,) bool, has a red frame."""
    high, wide = x.shape[2] + _GAP, x.shape[3] + _GAP
    sheet = np.zeros((down * high, across * wide, 4))  # transparent between the tiles
    for k, one in enumerate(x):
        top, left = k // across * high, k % across * wide
        colors = ((one.clamp(-1, 1) + 1) / 2).expand(3, -1, -1).permute(1, 2, 0).numpy()
        sheet[top : top + x.shape[2], left : left + x.shape[3]] = np.dstack([colors, np.ones(x.shape[2:])])
        if bad[k]:
            corner = (left - 1, top - 1)
            ax.add_patch(Rectangle(corner, x.shape[3] + 1, x.shape[2] + 1, fill=False, color=BAD))
    ax.imshow(sheet, interpolation="nearest")
    ax.axis("off")


def _draw_points(x: Tensor, bad: Tensor, score: Tensor, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharex=True, sharey=True)
    for ax, rows, name in zip(axes, ends(score, len(x)), _TITLES, strict=True):
        for which, color in ((~bad[rows], plot.KEPT), (bad[rows], BAD)):
            ax.scatter(*x[rows][which].T, s=6, color=color, linewidths=0)
        ax.set_title(f"the {len(rows)} {name} of {len(x)}", fontsize=9)
        ax.set(aspect="equal", xticks=[], yticks=[])
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_series(x: Tensor, bad: Tensor, score: Tensor, path: Path) -> None:
    """Curves, channels one above the other."""
    x = x if x.ndim == 3 else x[:, None]
    across, down = (5, 2) if x.shape[1] > 1 else (ACROSS, DOWN)
    figure, axes = plt.subplots(down, 2 * across, figsize=(12, 5), sharex=True, sharey=True)
    halves = np.array_split(axes, 2, axis=1)
    for half, rows, name in zip(halves, ends(score, across * down), _TITLES, strict=True):
        for ax, row in zip(half.flat, rows.tolist(), strict=False):
            for channel, values in enumerate(x[row]):
                color = BAD if bad[row] else plot.KEPT
                ax.plot(torch.arange(len(values)), values - 2.2 * channel, color=color, linewidth=0.8)
            ax.set(xticks=[], yticks=[])
        half[0, across // 2].set_title(f"the {len(rows)} {name} of {len(x)}", fontsize=10)
    if x.shape[1] > 1:
        for ax in axes[:, 0]:
            places = [-2.2 * channel for channel in range(x.shape[1])]
            ax.set_yticks(places, labels=realdata.CHANNELS, fontsize=6)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=90)
    plt.close(figure)
