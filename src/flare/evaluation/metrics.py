"""How good a score or a filter is: detection, rates, and distance to held-out data."""

from __future__ import annotations

import torch
from torch import Tensor


def auroc(score: Tensor, bad: Tensor) -> float:
    """The chance that a bad sample has a higher score than a good one, ties counted half."""
    positives, negatives = score[bad].double(), score[~bad].double()
    if not len(positives) or not len(negatives):
        raise ValueError(
            f"an AUROC needs bad and good samples; {int(bad.sum())} of {len(bad)} are bad. Draw more samples."
        )
    ordered = negatives.sort().values
    below = torch.searchsorted(ordered, positives, right=False)
    up_to = torch.searchsorted(ordered, positives, right=True)
    return float((below + up_to).double().mean() / (2 * len(negatives)))


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2·E‖x−y‖ − E‖x−x'‖ − E‖y−y'‖ between clouds (n, d) and (m, d), unbiased; 0 if they are alike."""
    x, y = x.double().flatten(1), y.double().flatten(1)

    def within(v: Tensor) -> Tensor:
        return torch.cdist(v, v).sum() / (len(v) * (len(v) - 1))

    return float(2 * torch.cdist(x, y).mean() - within(x) - within(y))


def rate(bad: Tensor, kept: Tensor | None = None) -> float:
    """The share of bad samples among those kept."""
    return float((bad if kept is None else bad[kept]).double().mean())
