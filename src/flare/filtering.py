"""Keeping the samples with the lowest scores."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_fraction(score: Tensor, fraction: float) -> Tensor:
    """A mask of the `fraction` of the samples with the lowest scores, (n,) bool; ties by index.

    >>> keep_fraction(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5)
    tensor([False,  True,  True, False])
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}.")
    _check(score)
    count = max(1, round(fraction * len(score)))
    mask = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    mask[score.argsort(stable=True)[:count]] = True
    return mask


def keep_below(score: Tensor, threshold: float) -> Tensor:
    """A mask of the samples whose score is at most `threshold`, (n,) bool."""
    _check(score)
    return score <= threshold


def _check(score: Tensor) -> None:
    if score.ndim != 1 or len(score) == 0:
        raise ValueError(f"score must have shape (n,) with n of at least 1, got {tuple(score.shape)}.")
    if not torch.isfinite(score).all():
        raise ValueError(f"{int((~score.isfinite()).sum())} of {len(score)} scores are NaN or infinite.")
