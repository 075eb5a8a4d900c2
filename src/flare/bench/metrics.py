"""Metrics of scores and filters: detection, rates, and distance to held-out data."""

from __future__ import annotations

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor


def auroc(score: Tensor, bad: Tensor) -> float:
    """The probability that a bad sample has a higher score than a good one; ties count as one half.

    >>> score, bad = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True])
    >>> flare.bench.metrics.auroc(score, bad)
    1.0
    """
    _check(score, bad)
    return float(roc_auc_score(bad.cpu(), score.detach().cpu().double()))


def average_precision(score: Tensor, bad: Tensor) -> float:
    """Σ_k (R_k − R_{k−1})·P_k over thresholds k, with recall R and precision P; ties share a threshold.

    It is the fraction of bad samples for an uninformative score, and 1 for a perfect one.

    >>> score, bad = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True])
    >>> flare.bench.metrics.average_precision(score, bad)
    1.0
    """
    _check(score, bad)
    return float(average_precision_score(bad.cpu(), score.detach().cpu().double()))


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2·E‖x−y‖ − E‖x−x'‖ − E‖y−y'‖ between clouds (n, d) and (m, d), unbiased; 0 for equal distributions.

    >>> near = flare.bench.metrics.energy_distance(data[:200], data[200:400])
    >>> far = flare.bench.metrics.energy_distance(data[:200], data[200:400] + 1)
    >>> near < far
    True
    """
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if min(len(x), len(y)) < 2:
        raise ValueError(
            f"energy distance needs at least 2 samples on each side, got shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    x, y = x.double().flatten(1), y.double().flatten(1)
    origin = y.median(0).values  # far from 0 the products of cdist cancel
    x, y = x - origin, y - origin

    def within(v: Tensor) -> Tensor:
        return torch.cdist(v, v).sum() / (len(v) * (len(v) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y))


def keep_lowest(score: Tensor, share: float) -> Tensor:
    """Mask of the round(share·n) samples with the lowest scores, (n,) bool; ties go to the first.

    >>> flare.bench.metrics.keep_lowest(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5)
    tensor([False,  True,  True, False])
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share to keep must lie in (0, 1], got {share:g}.")
    kept = torch.zeros(len(score), dtype=torch.bool)
    kept[score.cpu().argsort(stable=True)[: round(share * len(score))]] = True
    return kept


def rate(bad: Tensor, kept: Tensor | None = None) -> float:
    """The fraction of bad samples, among those kept if given.

    >>> bad, kept = torch.tensor([True, False, False, True]), torch.tensor([False, True, True, True])
    >>> flare.bench.metrics.rate(bad)
    0.5
    >>> round(flare.bench.metrics.rate(bad, kept), 2)
    0.33
    """
    return float((bad if kept is None else bad[kept]).double().mean())


def _check(score: Tensor, bad: Tensor) -> None:
    if score.ndim != 1 or score.shape != bad.shape or bad.dtype != torch.bool or not score.isfinite().all():
        lost = int((~score.isfinite()).sum())
        raise ValueError(
            "detection is measured by finite scores (n,) and a mask (n,) of bad samples, got shapes "
            f"{tuple(score.shape)} and {tuple(bad.shape)} ({bad.dtype}), {lost} scores NaN or infinite."
        )
    if not 0 < (count := int(bad.sum())) < len(bad):
        raise ValueError(
            f"detection needs bad and good samples; {count} of {len(bad)} are bad. Draw more samples."
        )
