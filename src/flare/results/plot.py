"""The figures of a result as matplotlib axes, for notebooks; `Result.plot` draws them by name.

Every function draws on `ax`, or on the axes of a new figure, and returns the axes; none shows or saves
anything. Samples that were lost to NaN or infinity are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy.stats import beta, betabinom, kstwo
from torch import Tensor

from .drawing import RAMP, Scale, count_bins, deviations, drop_lost, panels, rank_by, space_evenly
from .filters import keep_best, require_share
from .pictures import COLORS as COLORS
from .pictures import (
    draw_bands,
    draw_ellipses,
    draw_maps,
    draw_paths,
    draw_samples,
    map_colors,
    new_axes,
    split_axes,
)
from .result import Result

KEPT, ALL, REAL = RAMP[0], "#8b95a5", "#1c8a5f"
ALPHA = 0.05  # the p-value of the threshold
LEVEL = 0.95  # of bands and intervals
SHARES = np.linspace(0.02, 1, 50)  # where the trade-off is computed
ELLIPSES, BANDS, MAPS, PATHS, STRIPS = 300, 3, 24, 60, 6  # samples that show their variance or their path


def samples(
    result: Result, mask: Tensor | None = None, ax: Axes | None = None, score: str | None = None
) -> Axes:
    """Samples colored by score: points, curves or tiles, depending on their shape.

    Colors and axes span all samples even with a mask, so plots before and after a filter are
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
    chosen = _check_mask("the mask", ~result.lost if mask is None else mask, len(result))
    result, places = drop_lost(result)
    ranking = rank_by(result, score)
    everything, colors = panels(result.samples).numpy(), map_colors(ranking.values)
    if not chosen[places].any():
        raise ValueError("the mask keeps no sample; there is nothing to draw.")
    ax = new_axes(ax)
    draw_samples(ax, everything, ranking.values, colors, chosen[places])
    ax.figure.colorbar(colors, ax=ax, label=ranking.label, extend="both")
    return ax


def kept(result: Result, keep: float | Tensor = 0.5, ax: Axes | None = None) -> Axes:
    """The kept samples on the left and the removed ones on the right, as `samples` draws them.

    >>> axes = flare.plot.kept(result, keep=0.25)
    >>> axes.get_title()
    '5 kept'

    Args:
        result: Samples with scores.
        keep: Share of every region to keep, in (0, 1), or a mask (n,) of the samples to keep, such as
            `result.trusted(0.05)`.
        ax: Axes to draw on, made by `plt.subplots` or `figure.add_subplot`. They become the left half.
    """
    if isinstance(keep, (int, float)):
        require_share("keep", keep, below_one=True)
        keep = result.keep(keep)
    chosen = _check_mask("keep, as a mask,", keep, len(result))
    result, places = drop_lost(result)
    parts = {"kept": chosen[places], "removed": ~chosen[places]}
    if not all(mask.any() for mask in parts.values()):
        raise ValueError(
            f"{int(chosen[places].sum())} of {len(places)} samples are kept, so one side is empty; "
            "choose another keep, or draw all samples with flare.plot.samples."
        )
    ranking = rank_by(result)
    everything, colors = panels(result.samples).numpy(), map_colors(ranking.values)
    halves = split_axes(ax)
    for half, (word, mask) in zip(halves, parts.items(), strict=True):
        draw_samples(half, everything, ranking.values, colors, mask)
        half.set_title(f"{int(mask.sum())} {word}", fontsize="medium")
    halves[1].set_ylabel("")
    halves[0].figure.colorbar(colors, ax=halves, label=ranking.label, extend="both")
    return halves[0]


def variance(result: Result, width: float = 2.0, ax: Axes | None = None, score: str | None = None) -> Axes:
    """The epistemic variance of samples at evenly spaced ranks.

    - Points: ellipses around at most 300 samples, colored by score, parallel to the axes unless the result
      has covariances. The axes span the samples; larger ellipses are cut.
    - Curves: the most plausible, the median and the most doubtful sample, each with a band, colored by score.
    - Images: at most 24 images, each with the map of its standard deviations on the right.

    >>> axes = flare.plot.variance(result)

    Args:
        result: Samples with their variance, for example from `scorer.sample(100, directions=16)`.
        width: Half-width of ellipses and bands, in standard deviations.
        ax: Axes to draw on.
        score: The score that ranks the samples; by default the verdict, or the first score if there is none.
    """
    if not 0 < width < np.inf:
        raise ValueError(f"width must be a positive number of standard deviations, got {width}.")
    result = drop_lost(result)[0]
    spread = deviations(result)
    if spread is None:
        raise ValueError(
            "these samples have no variance; draw them with scorer.sample(n, directions=16), or with "
            "flare.sample(..., posterior)."
        )
    ranking = rank_by(result, score)
    everything, colors = panels(result.samples).numpy(), map_colors(ranking.values)
    rows = _choose(ranking.values, {2: ELLIPSES, 3: BANDS, 4: MAPS}[everything.ndim])
    shade = colors.to_rgba(ranking.values[rows].numpy())
    ax = new_axes(ax)
    if everything.ndim == 4:
        draw_maps(ax, everything, spread.numpy(), rows)
        return ax
    if everything.ndim == 2:
        draw_ellipses(ax, result[rows], width, shade)
    else:
        draw_bands(ax, everything, width * spread.numpy(), rows, shade)
    ax.set_title(f"± {width:g} standard deviations", fontsize="medium")
    ax.figure.colorbar(colors, ax=ax, label=ranking.label, extend="both")
    return ax


def fan(
    result: Result, states: Tensor | Sequence[Tensor], ax: Axes | None = None, score: str | None = None
) -> Axes:
    """The states over the steps of the sampler, of samples at evenly spaced ranks.

    - Points: the paths of at most 60 samples in the plane, colored by score. Dots mark their ends.
    - Curves: the values of at most 60 samples over the steps, at the position where the samples differ most.
    - Images: one row for each of at most 6 samples, with at most 10 evenly spaced steps.

    >>> run = flare.trajectories(denoiser, steps, posterior, n=20, shape=model.shape, directions=4)
    >>> states = [frame.x for frame in run]
    >>> axes = flare.plot.fan(run.result, states)

    Args:
        result: Samples with scores.
        states: States of the same samples after each step, each (n, *shape). The states of `scorer.sample(n)`
            come from `flare.trajectories(scorer.denoiser, scorer.steps(), n=n, shape=scorer.shape)`, with the
            same seed.
        ax: Axes to draw on.
        score: The score that ranks the samples; by default the verdict, or the first score if there is none.
    """
    states = list(states)
    shapes = {tuple(getattr(state, "shape", ())) for state in states}
    if shapes != {tuple(result.samples.shape)}:
        raise ValueError(
            f"each state must have the shape of the samples, {tuple(result.samples.shape)}, got "
            f"{' and '.join(map(str, sorted(shapes))) or 'none'}; give "
            "[frame.x for frame in flare.trajectories(..., batch_size=n)]."
        )
    result, places = drop_lost(result)
    ranking = rank_by(result, score)
    everything, colors = panels(result.samples).numpy(), map_colors(ranking.values)
    rows = _choose(ranking.values, STRIPS if everything.ndim == 4 else PATHS)
    path = np.stack([panels(state[places[rows]]).numpy() for state in states], axis=1)
    ax = new_axes(ax)
    draw_paths(ax, path, colors.to_rgba(ranking.values[rows].numpy()), everything)
    ax.figure.colorbar(colors, ax=ax, label=ranking.label, extend="both")
    return ax


def histogram(
    result: Result, keep: float | None = None, ax: Axes | None = None, score: str | None = None
) -> Axes:
    """A histogram of the scores, kept samples in color and removed ones in gray, with the highest kept score.

    If the result has the scores of real data, they are drawn in the background, scaled to the number of
    samples. The axis is logarithmic if the scores are positive and span a wide range. The first and the last
    bar include outliers.

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
    ax = new_axes(ax)
    scale = Scale.of(values, real)
    edges = scale.edges(values, real)
    middle = np.sqrt(edges[1:] * edges[:-1]) if scale.log else (edges[1:] + edges[:-1]) / 2
    if real is not None:
        counts = count_bins(real, edges) * len(values) / len(real)
        ax.stairs(counts, edges, fill=True, color=REAL, alpha=0.3, label="real data")
    everything, below, widths = count_bins(values, edges), count_bins(values[kept], edges), np.diff(edges)
    ax.bar(edges[:-1], everything, widths, align="edge", color=ALL, alpha=0.5, label="removed")
    ax.bar(edges[:-1], below, widths, align="edge", color=map_colors(values).to_rgba(middle), label="kept")
    if real is not None:
        ax.stairs(counts, edges, color=REAL, linewidth=1.5)
        ax.legend(frameon=False)
    if kept.any():
        ax.axvline(float(values[kept].max()), color="black", linestyle="--")
    ax.set(xlabel=ranking.label, ylabel="samples", xscale="log" if scale.log else "linear")
    ax.set_title(f"{int(kept.sum())} of {len(values)} kept: {rule}", fontsize="medium")
    return ax


def p_values(result: Result, ax: Axes | None = None, score: str | None = None) -> Axes:
    """The cumulative distribution of the p-values, compared with real data, the diagonal.

    The p-values of fresh real samples are uniform, so their curve lies near the diagonal. With a probability
    of about 95%, the whole curve of n real samples stays within the band. The width of the band depends on n
    and on the number m of reference samples: up to 1/m, the largest distance from the diagonal is the
    two-sample Kolmogorov–Smirnov statistic of n and m samples. The band uses its 95% quantile, which scipy
    approximates by the quantile for one sample of size nm / (n + m). In simulations with n and m from 20 to
    1,000, 94% to 96% of the curves stay within the band, for one score and for verdicts of three scores.

    The band is wide for small p-values. The title therefore compares the share with p ≤ 0.05 with a 95%
    interval: of n real samples, the number with p ≤ k / (m + 1) has a beta-binomial distribution with the
    parameters n, k and m + 1 − k. This is exact for one score without ties, and nearly so for the verdict
    (see `Reference.verdict`).

    >>> axes = flare.plot.p_values(scorer.sample(50, steps=5))

    Args:
        result: Samples with a verdict, for example from a `flare.Scorer`.
        ax: Axes to draw on.
        score: The score whose p-values are drawn; by default the verdict.
    """
    result = drop_lost(result)[0]
    ranking = rank_by(result, score)
    if ranking.p_value is None or ranking.size is None or result.verdict is None:
        raise ValueError(
            f"{ranking.name} has no p-values, because it was not compared with real data; score the samples "
            "with a flare.Scorer: flare.fit(net, data, schedule).score(samples)."
        )
    p, n, m = ranking.p_value.cpu().numpy(), len(result), ranking.size
    ax = new_axes(ax)
    line = np.linspace(0, 1, 201)
    width = float(kstwo.isf(1 - LEVEL, max(1, round(n * m / (n + m)))))
    real = "real data" if result.verdict.held_out else "training data"
    low, high = (line - width).clip(0), (line + width).clip(max=1)
    ax.fill_between(line, low, high, color=REAL, alpha=0.2, linewidth=0, label=f"{LEVEL:.0%} band")
    ax.plot([0, 1], [0, 1], color=REAL, linewidth=1, label=f"{real} ({m:,})")
    ax.ecdf(p, color=KEPT, linewidth=1.5, label=f"samples ({n:,})")
    ax.axvline(ALPHA, color=ALL, linestyle=":", linewidth=1)
    ax.set(xlabel="p-value", ylabel="share of samples with at most this p-value", xlim=(0, 1), ylim=(0, 1))
    title = f"{(p <= ALPHA).mean():.1%} have p ≤ {ALPHA}"
    if rank := int(ALPHA * (m + 1) + 1e-9):
        few, many = betabinom.interval(LEVEL, n, rank, m + 1 - rank)
        title += f"; {real}: {few / n:.1%} to {many / n:.1%}"
    ax.set_title(title, fontsize="medium")
    ax.legend(frameon=False, loc="lower right")
    return ax


def trade_off(
    result: Result, bad: Tensor | Sequence[bool], ax: Axes | None = None, score: str | None = None
) -> Axes:
    """The share of bad samples among the kept against the share that is kept.

    One curve keeps the share of every region, if the result has regions, and one ranks across them (see
    `Result.keep`). The dashed line shows a random selection. Each band is a pointwise 95% interval of the
    share of bad samples, by Clopper and Pearson: the kept samples count as independent draws of a binomial.

    >>> axes = flare.plot.trade_off(result, bad=result.samples.abs().amax(1) > 1)

    Args:
        result: Samples with scores.
        bad: Samples that are known to be bad, (n,) bool.
        ax: Axes to draw on.
        score: The score to rank by; by default the verdict, or the first score if there is none.
    """
    wrong = _check_mask("bad", bad, len(result))
    result, places = drop_lost(result)
    wrong, ranking = wrong[places], rank_by(result, score)
    ways = {"by region": result.regions, "by rank": None}
    if result.regions is None:
        del ways["by region"]
    ax = new_axes(ax)
    top = base = float(wrong.double().mean())
    tail = (1 - LEVEL) / 2
    for (name, regions), color in zip(ways.items(), (KEPT, RAMP[3]), strict=False):
        masks = torch.stack([keep_best(ranking.values, share, regions) for share in SHARES])
        count, found = masks.sum(1).numpy(), (masks & wrong).sum(1).numpy()
        low = np.where(found > 0, beta.ppf(tail, found, count - found + 1), 0)
        high = np.where(found < count, beta.isf(tail, found + 1, count - found), 1)
        ax.fill_between(count / len(wrong), low, high, color=color, alpha=0.15, linewidth=0)
        ax.plot(count / len(wrong), found / count, color=color, label=f"{ranking.name}, {name}")
        top = max(top, float((found / count).max()))
    ax.axhline(base, color=ALL, linestyle="--", label=f"at random ({base:.1%})")
    ax.set(xlabel="share kept", ylabel="share of bad samples among the kept", xlim=(0, 1))
    ax.set_ylim(-0.05 * (top or 0.5), 2 * (top or 0.5))  # bands of few samples are cut
    ax.legend(frameon=False)
    return ax


def _check_mask(name: str, mask: Any, n: int) -> Tensor:
    """A mask (n,) bool on the CPU."""
    mask = torch.as_tensor(mask).cpu()
    if mask.shape != (n,) or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} must have shape ({n},) and be bool, got {tuple(mask.shape)} and {mask.dtype}; compare "
            "numbers with a threshold, such as x > 0.5."
        )
    return mask


def _choose(values: Tensor, limit: int) -> Tensor:
    """At most `limit` samples at evenly spaced ranks, the most plausible first."""
    return values.argsort(stable=True)[space_evenly(len(values), limit)]
