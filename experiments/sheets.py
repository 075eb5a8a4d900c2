"""Sheets of samples sorted by their score: the most certain ones and the least, with their uncertainty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def ends(score: Tensor, count: int = ACROSS * DOWN) -> tuple[Tensor, Tensor]:
    """The rows of the lowest and of the highest scores, each from the lowest up."""
    order = score.argsort(stable=True)
    count = min(count, len(order) // 2)
    return order[:count], order[-count:]


def images(found: dict[str, Any], path: Path, title: str) -> None:
    """Images above their standard deviation; what the judge calls bad has a red frame."""
    deviation = found["variance"].sqrt()
    scale = deviation.quantile(0.99) if deviation.numel() < 1e7 else deviation.max()
    figure, axes = plt.subplots(1, 2, figsize=(11, 6.4))
    for ax, rows, name in zip(axes, ends(found["default"]), ("most certain", "least certain"), strict=True):
        _tiles(ax, found["samples"][rows, 0], (deviation[rows, 0] / scale).clamp(0, 1), found["bad"][rows])
        ax.set_title(f"the {len(rows)} {name} of {len(found['samples'])} ({title})", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _tiles(ax: Axes, x: Tensor, maps: Tensor, bad: Tensor) -> None:
    high, wide = x.shape[1] * 2 + _GAP + 1, x.shape[2] + _GAP
    sheet = np.ones((DOWN * high, ACROSS * wide, 3))
    for k, (one, its_map) in enumerate(zip(x, maps, strict=True)):
        top, left = k // ACROSS * high, k % ACROSS * wide
        grey = ((one.clamp(-1, 1) + 1) / 2).numpy()
        sheet[top : top + x.shape[1], left : left + x.shape[2]] = grey[..., None]
        below = top + x.shape[1]
        sheet[below : below + x.shape[1], left : left + x.shape[2]] = plt.cm.magma(its_map.numpy())[..., :3]
        if bad[k]:
            corner = (left - 1, top - 1)
            ax.add_patch(Rectangle(corner, x.shape[2] + 1, 2 * x.shape[1] + 1, fill=False, color=BAD))
    ax.imshow(sheet, interpolation="nearest")
    ax.axis("off")


def series(found: dict[str, Any], path: Path, title: str) -> None:
    """Curves with ± 2 standard deviations, as far as they fit, channels one above the other; bad ones red."""
    x, deviation = found["samples"], found["variance"].sqrt()
    x, deviation = (v if v.ndim == 3 else v[:, None] for v in (x, deviation))
    across, down = (5, 2) if x.shape[1] > 1 else (ACROSS, DOWN)
    figure, axes = plt.subplots(down, 2 * across, figsize=(12, 5.5), sharex=True, sharey=True)
    halves = np.array_split(axes, 2, axis=1)
    for half, rows, name in zip(
        halves, ends(found["default"], across * down), ("most certain", "least certain"), strict=True
    ):
        for ax, row in zip(half.flat, rows.tolist(), strict=False):
            color = BAD if found["bad"][row] else plot.KEPT
            for channel, (mean, sd) in enumerate(zip(x[row], deviation[row], strict=True)):
                base = -2.2 * channel
                hours = torch.arange(len(mean))
                ax.fill_between(
                    hours, base + mean - 2 * sd, base + mean + 2 * sd, color=color, alpha=0.25, lw=0
                )
                ax.plot(hours, base + mean, color=color, linewidth=0.8)
            ax.set(xticks=[], yticks=[])
        half[0, across // 2].set_title(f"the {len(rows)} {name} ({title})", fontsize=10)
    levels = [-2.2 * channel for channel in range(x.shape[1])]
    room = 0.3 * float(x[:, 0].max() - x[:, 0].min())
    axes[0, 0].set_ylim(levels[-1] + float(x[:, -1].min()) - room, float(x[:, 0].max()) + room)
    if len(levels) > 1:
        for ax in axes[:, 0]:
            ax.set_yticks(levels, labels=realdata.CHANNELS, fontsize=6)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw(found: dict[str, Any], path: Path, title: str) -> None:
    """The sheet that fits the samples."""
    (images if found["samples"].ndim == 4 else series)(found, path, title)
