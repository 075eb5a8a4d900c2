"""How good a score or a filter is: detection, rates, distance to held-out data, and what is left of modes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.validation import require_positive_int


def auroc(score: Tensor, bad: Tensor) -> float:
    """The chance that a bad sample has a higher score than a good one, ties counted half."""
    if not torch.isfinite(score).all():
        raise ValueError(f"{int((~score.isfinite()).sum())} of {len(score)} scores are NaN or infinite.")
    positives, negatives = score[bad].double(), score[~bad].double()
    if not len(positives) or not len(negatives):
        raise ValueError(
            f"an AUROC needs bad and good samples; {int(bad.sum())} of {len(bad)} are bad. Draw more samples."
        )
    ordered = negatives.sort().values
    below = torch.searchsorted(ordered, positives, right=False)
    up_to = torch.searchsorted(ordered, positives, right=True)
    return float((below + up_to).double().mean() / (2 * len(negatives)))


def average_precision(score: Tensor, bad: Tensor) -> float:
    """Σ_k (R_k − R_{k−1})·P_k, precision and recall of calling bad what scores highest; ties come together.

    The share of bad samples for a score that knows nothing, 1 for a perfect one.
    """
    if score.ndim != 1 or score.shape != bad.shape or bad.dtype != torch.bool or score.isnan().any():
        raise ValueError(
            "average precision needs scores (n,) without NaN and a mask (n,) of bad samples, got shapes "
            f"{tuple(score.shape)} and {tuple(bad.shape)} ({bad.dtype}), {int(score.isnan().sum())} NaN."
        )
    if not bad.any():
        raise ValueError(f"average precision needs bad samples; none of {len(bad)} is. Draw more samples.")
    ordered, order = score.sort(descending=True)
    found = bad[order].double().cumsum(0)
    last = torch.ones_like(bad)  # of those with the same score
    last[:-1] = ordered[1:] != ordered[:-1]
    called = last.nonzero()[:, 0] + 1
    found = found[last]
    new = found.diff(prepend=found.new_zeros(1))
    return float((new * found / called).sum() / bad.sum())


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2·E‖x−y‖ − E‖x−x'‖ − E‖y−y'‖ between clouds (n, d) and (m, d), unbiased; 0 if they are alike."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if min(len(x), len(y)) < 2:
        raise ValueError(
            f"energy distance needs at least 2 samples on each side, got shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    x, y = x.double().flatten(1), y.double().flatten(1)

    def within(v: Tensor) -> Tensor:
        return torch.cdist(v, v).sum() / (len(v) * (len(v) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y))


def rate(bad: Tensor, kept: Tensor | None = None) -> float:
    """The share of bad samples among those kept."""
    return float((bad if kept is None else bad[kept]).double().mean())


def mode_shares(modes: Tensor, count: int) -> Tensor:
    """The share of the samples in each of `count` modes, from the mode of each sample (n,): (count,)."""
    _check_modes(modes, count)
    return modes.bincount(minlength=count).double() / len(modes)


def within_mode_variance(x: Tensor, modes: Tensor, count: int) -> float:
    """The variance of a coordinate around the mean of its mode, unbiased, of samples x (n, d).

    A mean over coordinates and over modes, each mode counted alike; modes of fewer than 2 samples are left
    out.
    """
    _check_modes(modes, count)
    x = x.double().flatten(1)
    if len(x) != len(modes):
        raise ValueError(f"every sample needs its mode; got {len(x)} samples and {len(modes)} modes.")
    variances = [x[modes == mode].var(dim=0).mean() for mode in range(count) if (modes == mode).sum() > 1]
    if not variances:
        raise ValueError(f"no mode has 2 samples or more of {len(x)}; a variance needs them. Keep more.")
    return float(torch.stack(variances).mean())


def _check_modes(modes: Tensor, count: int) -> None:
    require_positive_int("count", count)
    if modes.ndim != 1 or len(modes) == 0 or modes.is_floating_point():
        raise ValueError(
            f"modes must be integers of shape (n,), n at least 1, got {tuple(modes.shape)} {modes.dtype}."
        )
    if modes.min() < 0 or modes.max() >= count:
        raise ValueError(
            f"modes must lie in 0…{count - 1}, got {int(modes.min())}…{int(modes.max())}; "
            "count is how many modes the truth has."
        )
