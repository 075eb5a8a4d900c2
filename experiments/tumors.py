"""Tumors of the breast, 569 × 30, from scikit-learn: a table whose columns obey inequalities that are known.

Ten features of the nuclei of a tumor, each as the mean over the nuclei, its standard error, and the mean of
the three largest values ("worst"). So "worst" is at least "mean", by definition. And no curve of perimeter p
encloses more than the area p² / 4π: the means and the worst of all 569 tumors obey this, too.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

CLASSES = ("malignant", "benign")
_PERIMETER, _AREA = [2, 22], [3, 23]  # mean and worst
_ROUNDING = 1e-6  # what float32 loses, relative to the largest value of a column


@cache
def table() -> tuple[Tensor, Tensor]:
    """All rows as they were measured, (569, 30) float64, and their classes, (569,)."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return torch.tensor(found.data), torch.tensor(found.target)


def make() -> tuple[Tensor, Tensor]:
    """All rows, scaled to [−1, 1], (569, 30), and their classes, (569,).

    The columns have long tails, so each is taken as log(1 + x / median).
    """
    rows, labels = table()
    low, high = _limits()
    return 2 * (torch.log1p(rows / rows.median(0).values) - low) / (high - low) - 1, labels


def measured(x: Tensor) -> Tensor:
    """Scaled rows as they would have been measured, (n, 30) float64."""
    low, high = _limits()
    return table()[0].median(0).values * torch.expm1(low + (high - low) * (x.double() + 1) / 2)


def bad(x: Tensor) -> Tensor:
    """Which scaled rows have a "worst" below its "mean", or an area too large for its perimeter."""
    rows, largest = measured(x), table()[0].max(0).values
    low = rows[:, 20:] < rows[:, :10] - _ROUNDING * largest[20:]
    wide = rows[:, _AREA] > rows[:, _PERIMETER].square() / (4 * torch.pi)
    return low.any(1) | wide.any(1)


def _limits() -> tuple[Tensor, Tensor]:
    rows, _ = table()
    logs = torch.log1p(rows / rows.median(0).values)
    return logs.min(0).values, logs.max(0).values
