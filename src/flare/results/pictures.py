"""Pictures of samples by their shape: points (n, 2), curves (n, C, L) or images (n, H, W, 1 or 3).

`plot` calls these functions. `everything` holds all samples, as `drawing.panels` returns them, and sets the
range of the axes or of the gray values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from torch import Tensor

from .drawing import RAMP, Scale, panels, space_evenly
from .result import Result

COLORS = LinearSegmentedColormap.from_list("flare", RAMP)
TILES = 10  # images per row and per column


def new_axes(ax: Axes | None) -> Axes:
    """The axes, or those of a new figure."""
    return plt.subplots(layout="compressed")[1] if ax is None else ax


def map_colors(values: Tensor) -> ScalarMappable:
    """The mapping from scores to colors, on the scale of all scores."""
    scale = Scale.of(values)
    norm = (LogNorm if scale.log else Normalize)(scale.low, scale.high, clip=True)
    return ScalarMappable(norm, COLORS)


def split_axes(ax: Axes | None) -> list[Axes]:
    """Two axes side by side, in the place of the given ones or in a new figure."""
    if ax is None:
        return list(plt.subplots(1, 2, figsize=(9, 4), layout="compressed")[1])
    place = ax.get_subplotspec()
    if place is None:
        raise ValueError(
            "these axes have no place in a grid that could be split; make them with plt.subplots."
        )
    halves = place.subgridspec(1, 2)
    ax.set_subplotspec(halves[0])
    return [ax, ax.figure.add_subplot(halves[1])]


def draw_samples(ax: Axes, everything: Any, values: Tensor, colors: ScalarMappable, mask: Tensor) -> None:
    """The samples of a mask, on axes that span all of them."""
    rows = values.argsort(stable=True)
    rows = rows[mask[rows]]
    if everything.ndim < 4:
        shuffle = torch.Generator().manual_seed(0)  # no end of the ranking is drawn last
        rows = rows[torch.randperm(len(rows), generator=shuffle)]
    drawn, shade = everything[rows], colors.to_rgba(values[rows].numpy())
    if everything.ndim == 2:
        ax.scatter(drawn[:, 0], drawn[:, 1], c=shade, s=8)
        ax.update_datalim(everything)
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    elif everything.ndim == 3:
        _curves(ax, drawn, shade, everything)
    else:
        chosen = space_evenly(len(drawn), TILES**2)
        page = _page(_to_rgb(drawn[chosen], everything), shade[chosen], TILES)
        _show(ax, page, f"{len(chosen)} of {len(drawn)} samples, most plausible first")


def draw_paths(ax: Axes, path: Any, shade: Any, everything: Any) -> None:
    """The states (n, steps, *shape) of some samples: in the plane, of one position, or as rows of images."""
    steps = np.arange(1, path.shape[1] + 1)
    if everything.ndim == 2:
        ax.add_collection(LineCollection(list(path), colors=shade, linewidths=0.8, alpha=0.6))
        ax.scatter(path[:, -1, 0], path[:, -1, 1], c=shade, s=12, zorder=3)
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    elif everything.ndim == 3:
        channel, position = np.unravel_index(everything.std(0).argmax(), everything.shape[1:])
        lines = [np.stack([steps, own], axis=1) for own in path[:, :, channel, position]]
        ax.add_collection(LineCollection(lines, colors=shade, linewidths=1, alpha=0.7))
        where = f"position {position}" + (f" of channel {channel + 1}" if everything.shape[1] > 1 else "")
        ax.set(xlabel="step", ylabel=f"value at {where}")
    else:
        columns = space_evenly(len(steps), TILES)
        tiles = _to_rgb(path[:, columns].reshape(-1, *everything.shape[1:]), everything)
        page = _page(tiles, shade.repeat(len(columns), axis=0), len(columns))
        _show(ax, page, f"steps {', '.join(map(str, steps[columns]))}")
    ax.autoscale_view()


def draw_bands(ax: Axes, everything: Any, reach: Any, rows: Tensor, shade: Any) -> None:
    """Curves with bands that reach this far to either side, stacked by channel."""
    x = np.arange(everything.shape[2])
    lifts = _shelves(ax, everything)
    for row, color in zip(rows, shade, strict=True):
        for middle, own, lift in zip(everything[row], reach[row], lifts, strict=True):
            ax.fill_between(x, middle + lift - own, middle + lift + own, color=color, alpha=0.3, linewidth=0)
            ax.plot(x, middle + lift, color=color, linewidth=1.2)


def draw_ellipses(ax: Axes, result: Result, width: float, shade: Any) -> None:
    """Points with ellipses of this many standard deviations."""
    assert result.variance is not None
    covariance = torch.diag_embed(result.variance) if result.covariance is None else result.covariance
    values, vectors = torch.linalg.eigh(covariance.detach().cpu().double())
    short, long = (2 * width * values.clamp(min=0).sqrt()).numpy().T
    angles = torch.rad2deg(torch.atan2(vectors[:, 1, 1], vectors[:, 0, 1])).numpy()
    at = panels(result.samples).numpy()
    ax.scatter(at[:, 0], at[:, 1], c=shade, s=4)
    ellipses = EllipseCollection(
        long, short, angles, units="xy", offsets=at, offset_transform=ax.transData,
        facecolors=shade * [1, 1, 1, 0.25], edgecolors=shade, linewidths=0.6,
    )  # fmt: skip
    ax.add_collection(ellipses, autolim=False)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")


def draw_maps(ax: Axes, everything: Any, spread: Any, rows: Tensor) -> None:
    """Images, each with the map of its standard deviations on the right."""
    drawn, spread = _to_rgb(everything[rows], everything), spread[rows][..., 0]
    top = float(np.quantile(spread, 0.95)) or 1.0  # a few outliers do not darken all others
    colors = ScalarMappable(Normalize(0, top, clip=True), COLORS)
    gap = np.ones((*drawn.shape[:2], 1, 3))
    pairs = np.concatenate([drawn, gap, np.asarray(COLORS(colors.norm(spread)))[..., :3]], axis=2)
    label = f"{len(rows)} of {len(everything)} samples, most plausible first, and their standard deviations"
    _show(ax, _page(pairs, np.ones((len(pairs), 3)), 4), label)
    ax.figure.colorbar(colors, ax=ax, label="standard deviation", extend="max")


def _shelves(ax: Axes, everything: Any) -> Any:
    """What to add to each channel (C,) so that curves (n, C, L) are stacked; the axes span them all.

    The distance fits the widest range of a channel. Several channels are centered; a single one keeps its
    values.
    """
    _, channels, length = everything.shape
    low, high = everything.min((0, 2)), everything.max((0, 2))
    distance = 1.1 * float((high - low).max() or 1.0)
    lift = -(high + low) / 2 - distance * np.arange(channels) if channels > 1 else np.zeros(1)
    ax.update_datalim([(0, (low + lift).min()), (length - 1, (high + lift).max())])
    ax.set(xlabel="position", ylabel="value")
    if channels > 1:
        ax.set_yticks(-distance * np.arange(channels), labels=[f"channel {c + 1}" for c in range(channels)])
        ax.set_ylabel(f"value (channels are {distance:.3g} apart)")
    return lift


def _curves(ax: Axes, drawn: Any, shade: Any, everything: Any) -> None:
    """Curves (n, C, L), stacked by channel."""
    n, _, length = drawn.shape
    x = np.broadcast_to(np.arange(length), (n, length))
    alpha = min(0.9, max(0.15, 7 / np.sqrt(n)))
    for c, lift in enumerate(_shelves(ax, everything)):
        lines = np.stack([x, drawn[:, c] + lift], axis=-1)
        ax.add_collection(LineCollection(list(lines), colors=shade, alpha=alpha, linewidths=1))
    ax.autoscale_view()


def _to_rgb(images: Any, everything: Any) -> Any:
    """Images (n, H, W, 1 or 3) as colors in [0, 1], from black to white over the range of all samples."""
    low, high = np.quantile(everything, [0.001, 0.999])
    gray = ((images - low) / ((high - low) or 1.0)).clip(0, 1)
    return np.broadcast_to(gray, (*gray.shape[:3], 3))


def _page(images: Any, shade: Any, across: int) -> Any:
    """Images (n, H, W, 3) as the tiles of one picture, `across` per row, each in a frame of its color."""
    n, height, width, _ = images.shape
    frame = max(1, min(height, width) // 12)
    across = min(across, n)
    tall, wide = height + 2 * frame + 1, width + 2 * frame + 1
    page = np.ones((-(-n // across) * tall, across * wide, 3))
    for k in range(n):
        top, left = (k // across) * tall, (k % across) * wide
        page[top : top + tall - 1, left : left + wide - 1] = shade[k, :3]
        page[top + frame : top + frame + height, left + frame : left + frame + width] = images[k]
    return page


def _show(ax: Axes, page: Any, label: str) -> None:
    ax.imshow(page)
    ax.set(xticks=[], yticks=[], xlabel=label)
    ax.spines[:].set_visible(False)
