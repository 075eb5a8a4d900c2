"""Keeping the samples with the lowest scores, without losing the diversity of the rest.

A score ranks; what is kept by rank alone is narrow: the middle of every mode, and the modes that the model
knows best. Two means against it: the same share of every stratum is kept, and scores that are typical of
real data count as equal, so that among plausible samples their order decides, which is no order in a draw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.validation import require_positive_int, require_samples


def keep_fraction(
    score: Tensor, fraction: float, *, typical: float | None = None, strata: Tensor | None = None
) -> Tensor:
    """A mask of the `fraction` of the samples with the lowest scores, (n,) bool; ties by index.

    A sample without a score (NaN: it was lost on the way) is never kept and does not count: the fraction is
    of the others.

    >>> keep_fraction(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5)
    tensor([False,  True,  True, False])

    Args:
        score: (n,); the larger, the less to be trusted.
        fraction: how many to keep, in (0, 1].
        typical: a score up to which samples are as plausible as real data, such as a quantile of the
            scores of real data; below it scores do not count.
        strata: one label per sample, (n,) integers, such as `strata(samples)`; the fraction is kept of each,
            rounded, and at least one.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}{suggest_fraction(fraction)}")
    score = torch.as_tensor(score)
    scored = _scored(score)
    if typical is not None:
        if not math.isfinite(typical):
            raise ValueError(f"typical must be a finite score, got {typical}.")
        score = score.clamp(min=typical)
    mask = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    for rows in _groups(strata, scored):
        count = max(1, round(fraction * len(rows)))
        mask[rows[score[rows].argsort(stable=True)[:count]]] = True
    return mask


def suggest_fraction(value: float) -> str:
    """The end of an error about a fraction, which may be meant as a percentage.

    >>> suggest_fraction(50)
    '; did you mean 0.5?'
    """
    return f"; did you mean {value / 100:g}?" if 1 < value <= 100 else "."


def keep_below(score: Tensor, threshold: float) -> Tensor:
    """A mask of the samples whose score is at most `threshold`, (n,) bool; a score of NaN never is."""
    score = torch.as_tensor(score)
    _scored(score)
    return score <= threshold


@torch.no_grad()
def strata(
    x: Tensor, count: int = 16, *, like: Tensor | None = None, seed: int = 0, iterations: int = 50
) -> Tensor:
    """Regions of sample space by k-means, to keep a share of each: labels (n,) in 0..count−1.

    Args:
        x: samples (n, *shape), or features of them; one that was lost on the way, all NaN, gets the label −1.
        count: how many regions; a few more than the modes that must not be lost.
        like: real data whose regions they are; without it those of the samples, where a few strays far
            from all else may become a region of their own, half of which is then kept.
        seed: of the first centres, which are drawn far apart (k-means++).
        iterations: at most this many of Lloyd's.
    """
    found = ~x.isnan().flatten(1).all(1) if isinstance(x, Tensor) and x.ndim > 1 else slice(None)
    asked = require_samples("x", x[found]).detach().flatten(1).double()
    points = asked if like is None else require_samples("like", like).detach().flatten(1).to(asked)
    if points.shape[1] != asked.shape[1]:
        raise ValueError(
            f"like must have samples of shape {tuple(x.shape[1:])}, got {tuple(points.shape[1:])}."
        )
    if require_positive_int("count", count) > len(points):
        raise ValueError(f"{count} strata were asked of {len(points)} samples; ask for fewer.")
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        weights = nearest.cpu() + torch.finfo(torch.float64).tiny  # all alike: any will do
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    centres = points[chosen]
    labels = torch.cdist(points, centres).argmin(1)
    for _ in range(iterations):
        sizes = labels.bincount(minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centres)
        before, labels = labels, torch.cdist(points, centres).argmin(1)
        if torch.equal(before, labels):
            break
    out = torch.full((len(x),), -1, device=x.device)
    out[found] = torch.cdist(asked, centres).argmin(1)
    return out


def _groups(strata: Tensor | None, scored: Tensor) -> list[Tensor]:
    """The rows of each stratum that have a score, in order."""
    if strata is None:
        return [scored.nonzero().flatten()]
    if strata.shape != scored.shape or strata.is_floating_point():
        raise ValueError(
            f"strata must be integer labels of shape {tuple(scored.shape)}, one per sample, got "
            f"{strata.dtype} of shape {tuple(strata.shape)}; make them with flare.strata(samples)."
        )
    strata = strata.to(scored.device)
    return [((strata == label) & scored).nonzero().flatten() for label in strata[scored].unique()]


def _scored(score: Tensor) -> Tensor:
    """Which samples have a score, (n,) bool; raise if none has, or one is infinite."""
    if score.ndim != 1 or len(score) == 0:
        raise ValueError(f"score must have shape (n,) with n of at least 1, got {tuple(score.shape)}.")
    if score.isinf().any():
        raise ValueError(f"{int(score.isinf().sum())} of {len(score)} scores are infinite.")
    scored = ~score.isnan()
    if not scored.any():
        raise ValueError(f"all {len(score)} scores are NaN: there is nothing to keep.")
    return scored
