"""The samples and the histogram of the report as matplotlib axes, for notebooks.

Every function draws on `ax`, or on the axes of a new figure, and returns the axes; none shows or saves
anything. Samples that were lost to NaN or infinity are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from torch import Tensor

from .drawing import (
    RAMP,
    Scale,
    count_bins,
    drop_lost,
    kind,
    panels,
    rank_by,
    space_evenly,
)
from .filters import keep_best, require_share
from .result import Result

COLORS = LinearSegmentedColormap.from_list("flare", RAMP)
KEPT, ALL, REAL = RAMP[0], "#8b95a5", "#1c8a5f"
ALPHA = 0.05  # the p-value of the threshold
TILES = 10  # images per row and per column


def samples(
    result: Result, mask: Tensor | None = None, ax: Axes | None = None, score: str | None = None
) -> Axes:
    """Samples colored by score: points, curves or tiles, depending on their shape.

    Colors and axes span all samples even with a mask, so that plots before and after a filter are
    comparable. Curves of several channels are stacked; of more than 100 images, 100 evenly spaced ranks are
    shown.

    >>> axes = flare.plot.samples(result)
    >>> axes.figure.savefig("samples.png")

    Args:
        result: Samples with scores.
        mask: Which samples to draw, (n,) bool, such as `result.keep(0.5)`.
        ax: Axes to draw on.
        score: The score that sets the color; by default the verdict, or the first score if there is none.
    """
    if mask is not None and mask.shape != (len(result),):
        raise ValueError(
            f"the mask must have shape ({len(result)},), got {tuple(mask.shape)}; make it with result.keep."
        )
    result, places = drop_lost(result)
    ranking = rank_by(result, score)
    values = ranking.values
    ax = _axes(ax)
    colors = _colors(values)
    rows = values.argsort(stable=True)
    if mask is not None:
        rows = rows[mask.cpu()[places][rows]]
    if len(rows) == 0:
        raise ValueError("the mask keeps no sample; there is nothing to draw.")
    everything = panels(result.samples).numpy()
    if everything.ndim < 4:
        shuffle = torch.Generator().manual_seed(0)  # no end of the ranking is drawn last
        rows = rows[torch.randperm(len(rows), generator=shuffle)]
    drawn, shade = everything[rows], colors.to_rgba(values[rows].numpy())
    match kind(result.samples.shape[1:]):
        case "points":
            ax.scatter(drawn[:, 0], drawn[:, 1], c=shade, s=8)
            ax.update_datalim(everything)
            ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        case "series":
            _curves(ax, drawn, shade, everything.min((0, 2)), everything.max((0, 2)))
        case "images":
            _tiles(ax, drawn, shade, np.quantile(everything, [0.001, 0.999]))
    ax.figure.colorbar(colors, ax=ax, label=ranking.label, extend="both")
    return ax


def histogram(
    result: Result, keep: float | None = None, ax: Axes | None = None, score: str | None = None
) -> Axes:
    """A histogram of the scores, kept samples in color and removed ones in gray, with the highest kept score.

    Real data, if the result knows its scores, is drawn behind the samples, scaled to their number. The axis
    is logarithmic if the scores are positive and span a wide range; outliers are counted in the first and the
    last bar.

    >>> axes = flare.plot.histogram(result, keep=0.5)

    Args:
        result: Samples with scores.
        keep: Share of every region to keep, in (0, 1]; by default the samples with p > 0.05 are kept, or one
            half if there are no p-values.
        ax: Axes to draw on.
        score: The score to draw; by default the verdict, or the first score if there is none.
    """
    require_share("keep", 0.5 if keep is None else keep)
    result = drop_lost(result)[0]
    ranking = rank_by(result, score)
    values, real = ranking.values, ranking.real
    if keep is None and ranking.p_value is not None:
        kept, rule = ranking.p_value > ALPHA, f"p > {ALPHA}"
    else:
        share = 0.5 if keep is None else keep
        kept = keep_best(values, share, result.regions)
        highest = f"{ranking.name} ≤ {float(values[kept].max()):.4g}"
        rule = highest if result.regions is None else f"the best {share:.3g} of every region"
    ax = _axes(ax)
    scale = Scale.of(values, real)
    edges = scale.edges(values, real)
    middle = np.sqrt(edges[1:] * edges[:-1]) if scale.log else (edges[1:] + edges[:-1]) / 2
    if real is not None:
        counts = count_bins(real, edges) * len(values) / len(real)
        ax.stairs(counts, edges, fill=True, color=REAL, alpha=0.3, label="real data")
    everything, below, widths = count_bins(values, edges), count_bins(values[kept], edges), np.diff(edges)
    ax.bar(edges[:-1], everything, widths, align="edge", color=ALL, alpha=0.5, label="removed")
    ax.bar(edges[:-1], below, widths, align="edge", color=_colors(values).to_rgba(middle), label="kept")
    if real is not None:
        ax.stairs(counts, edges, color=REAL, linewidth=1.5)
        ax.legend(frameon=False)
    if kept.any():
        ax.axvline(float(values[kept].max()), color="black", linestyle="--")
    ax.set(xlabel=ranking.label, ylabel="samples", xscale="log" if scale.log else "linear")
    ax.set_title(f"{int(kept.sum())} of {len(values)} kept: {rule}", fontsize="medium")
    return ax


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _colors(values: Tensor) -> ScalarMappable:
    """The mapping from scores to colors, on the scale of all scores."""
    scale = Scale.of(values)
    norm = (LogNorm if scale.log else Normalize)(scale.low, scale.high, clip=True)
    return ScalarMappable(norm, COLORS)


def _curves(ax: Axes, drawn: Any, shade: Any, low: Any, high: Any) -> None:
    """Curves (n, C, L), stacked by channel at a distance that fits the widest range from low to high."""
    n, channels, length = drawn.shape
    shelf = 1.1 * float((high - low).max() or 1.0) if channels > 1 else 0.0
    # several channels are centered; a single one keeps its values
    center = (high + low) / 2 if channels > 1 else np.zeros(1)
    x = np.broadcast_to(np.arange(length), (n, length))
    alpha = min(0.9, max(0.15, 7 / np.sqrt(n)))
    for c in range(channels):
        lines = np.stack([x, drawn[:, c] - center[c] - c * shelf], axis=-1)
        ax.add_collection(LineCollection(list(lines), colors=shade, alpha=alpha, linewidths=1))
    ends = np.stack([low - center, high - center]) - shelf * np.arange(channels)
    ax.update_datalim([(0, ends.min()), (length - 1, ends.max())])
    ax.autoscale_view()
    ax.set(xlabel="position", ylabel="value")
    if channels > 1:
        ax.set_yticks(
            [-c * shelf for c in range(channels)], labels=[f"channel {c + 1}" for c in range(channels)]
        )
        ax.set_ylabel(f"value (channels are {shelf:.3g} apart)")


def _tiles(ax: Axes, drawn: Any, shade: Any, black_white: Any) -> None:
    """Evenly chosen images (n, H, W, 1 or 3) as tiles of one picture, framed in the color of their score."""
    chosen = space_evenly(len(drawn), TILES**2)
    low, high = black_white
    images = ((drawn[chosen] - low) / ((high - low) or 1.0)).clip(0, 1)
    _, height, width, _ = images.shape
    frame = max(1, min(height, width) // 12)
    across = min(TILES, len(chosen))
    down = -(-len(chosen) // across)
    tall, wide = height + 2 * frame + 1, width + 2 * frame + 1
    page = np.ones((down * tall, across * wide, 3))
    for k, i in enumerate(chosen):
        top, left = (k // across) * tall, (k % across) * wide
        page[top : top + tall - 1, left : left + wide - 1] = shade[i, :3]
        page[top + frame : top + frame + height, left + frame : left + frame + width] = images[k]
    ax.imshow(page)
    label = f"{len(chosen)} of {len(drawn)} samples, most certain first"
    ax.set(xticks=[], yticks=[], xlabel=label)
    ax.spines[:].set_visible(False)
