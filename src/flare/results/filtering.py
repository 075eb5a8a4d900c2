"""Filters: keep the samples with the lowest scores without losing diversity.

Keeping by rank alone narrows the samples to the middle of every mode and to the modes that the model knows
best. There are two remedies: keep the same fraction of every stratum (`strata`), and treat all scores that
are typical of real data as ties (`typical`). Ties are broken by index, and the order of samples in a draw is
random, so the choice among plausible samples is random too.
"""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..core.validation import require_positive_int, require_samples


def keep_fraction(
    score: Tensor, fraction: float, *, typical: float | None = None, strata: ArrayLike | None = None
) -> Tensor:
    """Mask of the `fraction` of the samples with the lowest scores, (n,) bool; ties are broken by index.

    Lost samples, whose score is NaN, are never kept; the fraction is that of the other samples.

    >>> flare.keep_fraction(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5)
    tensor([False,  True,  True, False])

    Args:
        score: (n,); higher means less trustworthy.
        fraction: fraction of the samples to keep, in (0, 1].
        typical: threshold up to which all scores are treated as ties, such as a quantile of the scores of
            real data; ties are broken by index.
        strata: one integer label per sample, a tensor, an array or a list (n,), such as `strata(samples)`;
            the fraction of each stratum is kept, rounded, and at least one sample.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}{suggest_fraction(fraction)}")
    score = torch.as_tensor(score)
    scored = _find_scored(score)
    if typical is not None:
        if not math.isfinite(typical):
            raise ValueError(f"typical must be a finite score, got {typical}.")
        score = score.clamp(min=typical)
    mask = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    for rows in _rows_per_stratum(strata, scored):
        count = max(1, round(fraction * len(rows)))
        mask[rows[score[rows].argsort(stable=True)[:count]]] = True
    return mask


def suggest_fraction(value: float) -> str:
    """End of an error message about a fraction that may have been meant as a percentage.

    >>> suggest_fraction(50)
    '; did you mean 0.5?'
    """
    return f"; did you mean {value / 100:g}?" if 1 < value <= 100 else "."


def keep_below(score: Tensor, threshold: float) -> Tensor:
    """Mask of the samples whose score is at most `threshold`, (n,) bool; NaN scores are never kept.

    >>> flare.keep_below(torch.tensor([3.0, 1.0, float("nan")]), 2.0)
    tensor([False,  True, False])
    """
    score = torch.as_tensor(score)
    _find_scored(score)
    return score <= threshold


@torch.no_grad()
def strata(
    x: Tensor, count: int = 16, *, like: Tensor | None = None, seed: int = 0, iterations: int = 50
) -> Tensor:
    """Partition samples into regions by k-means, to keep a fraction of each: labels (n,) in 0..count−1.

    >>> regions = flare.strata(result.samples, 2, like=data)
    >>> flare.keep_fraction(result.score, 0.5, strata=regions).sum()
    tensor(10)

    Args:
        x: samples (n, *shape), or features of them; lost samples, all NaN, get the label −1.
        count: number of regions; use a few more than the number of modes that must survive.
        like: real data (N, *shape) that defines the regions. By default the samples do; a few outliers may
            then form a region of their own, of which a fraction is kept.
        seed: of the initial centers (k-means++).
        iterations: maximum number of iterations of Lloyd's algorithm.
    """
    found = ~x.isnan().flatten(1).all(1) if isinstance(x, Tensor) and x.ndim > 1 else slice(None)
    flat = require_samples("x", x[found]).detach().flatten(1).double()
    points = flat if like is None else require_samples("like", like).detach().flatten(1).to(flat)
    if points.shape[1] != flat.shape[1]:
        raise ValueError(
            f"like must have samples of shape {tuple(x.shape[1:])}, got {tuple(points.shape[1:])}."
        )
    if require_positive_int("count", count) > len(points):
        raise ValueError(f"count must be at most the number of samples, {len(points)}, got {count}.")
    origin = points.median(0).values  # far from 0 the products of `_nearest` cancel; outliers do not move it
    points = points - origin
    centers = _refine_centers(points, _draw_centers(points, count, seed), iterations)
    labels = torch.full((len(x),), -1, device=flat.device)
    labels[found] = _nearest(flat - origin, centers)
    return labels


def _draw_centers(points: Tensor, count: int, seed: int) -> Tensor:
    """Draw initial centers by k-means++: with probability ∝ squared distance to the nearest chosen one."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        weights = nearest.cpu() + torch.finfo(torch.float64).tiny  # positive even if all points are equal
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return points[chosen]


def _refine_centers(points: Tensor, centers: Tensor, iterations: int) -> Tensor:
    """Lloyd's algorithm: move each center to the mean of its points until no label changes."""
    labels = _nearest(points, centers)
    for _ in range(iterations):
        sizes = labels.bincount(minlength=len(centers))
        sums = torch.zeros_like(centers).index_add_(0, labels, points)
        centers = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centers)
        before, labels = labels, _nearest(points, centers)
        if torch.equal(before, labels):
            break
    return centers


def _nearest(points: Tensor, centers: Tensor) -> Tensor:
    """The center nearest to each point, (n,): ‖a − b‖² − ‖a‖² = ‖b‖² − 2·aᵀb is smallest."""
    return torch.addmm(centers.square().sum(1), points, centers.T, alpha=-2).argmin(1)


def _rows_per_stratum(strata: ArrayLike | None, scored: Tensor) -> list[Tensor]:
    """Row indices of each stratum, in order, without samples that have no score."""
    if strata is None:
        return [scored.nonzero().flatten()]
    try:
        labels = torch.as_tensor(strata)
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
    except (TypeError, ValueError, RuntimeError) as error:
        labels, got = torch.empty(0), f"{type(strata).__name__} ({error})"
    if labels.shape != scored.shape or labels.is_floating_point():
        raise ValueError(
            f"strata must be integer labels of shape {tuple(scored.shape)}, one per sample, got {got}; make "
            "them with flare.strata(samples)."
        )
    labels = labels.to(scored.device, torch.long)
    return [((labels == label) & scored).nonzero().flatten() for label in labels[scored].unique()]


def _find_scored(score: Tensor) -> Tensor:
    """Which samples have a score, (n,) bool; raise if none has one, or if a score is infinite."""
    if score.ndim != 1 or len(score) == 0:
        raise ValueError(f"score must have shape (n,) with n of at least 1, got {tuple(score.shape)}.")
    if score.isinf().any():
        raise ValueError(
            f"scores must be finite, or NaN for lost samples; {int(score.isinf().sum())} of {len(score)} "
            "scores are infinite."
        )
    scored = ~score.isnan()
    if not scored.any():
        raise ValueError(f"all {len(score)} scores are NaN: there is nothing to keep.")
    return scored
