"""Samples that are lost to NaN or infinity: which ones, where, and what to tell the user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

ADVICE = "Clip x̂0 in the sampler (clip=...), or look for unscaled inputs or diverged training."
_SHOWN = 5  # steps, and samples of each, that a message names


def find_nonfinite(values: Iterable[Tensor], axes: int) -> Tensor | None:
    """Find the samples with NaN or infinity in any of the values, (B,) bool; None if there are none.

    Args:
        values: Tensors (..., B, *shape).
        axes: Number of the last axes, (B, *shape).
    """
    values = list(values)
    # a sum is finite unless a term is not (or it overflows), and ten times cheaper to check
    if not values or math.isfinite(reduce(torch.add, (value.sum() for value in values))):
        return None
    found = torch.stack([~_finite(value, axes) for value in values]).any(0)
    return found if found.any() else None


def fill_rows(value: Tensor, lost: Tensor, number: float, axes: int) -> Tensor:
    """Replace the lost samples of a tensor (..., B, *shape) by a number; `axes` counts (B, *shape)."""
    return value.masked_fill(lost.view(-1, *[1] * (axes - 1)), number)


class AllLostError(ValueError):
    """Raised if every sample of a call has NaN or infinity.

    Attributes:
        where: The indices of the lost samples, by the step at which they were lost.
    """

    def __init__(self, message: str, where: dict[str, list[int]]) -> None:
        super().__init__(message)
        self.where = where


class LostSamples:
    """Records which samples of a call are lost, and where.

    Args:
        n: Number of samples.

    Attributes:
        where: Where each lost sample was lost, by its index.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.where: dict[int, str] = {}

    def add(self, lost: Tensor, first: int, where: str) -> None:
        """Record lost samples, a mask (B,) that starts at index `first`. Raise if no sample is left."""
        for index in (lost.nonzero().flatten() + first).tolist():
            self.where.setdefault(index, where)
        if len(self.where) == self.n:
            raise AllLostError(f"{self._describe()}. {ADVICE}", self.about)

    @property
    def about(self) -> dict[str, list[int]]:
        """The indices of the lost samples, grouped by where they were lost."""
        places: dict[str, list[int]] = {}
        for index, where in sorted(self.where.items()):
            places.setdefault(where, []).append(index)
        return places

    @property
    def warning(self) -> str:
        """The message for the user."""
        return f"{self._describe()}; they are returned as NaN, other samples are unaffected. {ADVICE}"

    def _describe(self) -> str:
        places = [
            f"{where} has NaN or infinity in {name_samples(rows, self.n)}"
            for where, rows in self.about.items()
        ]
        more = [f"and {len(places) - _SHOWN} more such steps"] if len(places) > _SHOWN else []
        return "; ".join(places[:_SHOWN] + more)


def name_samples(rows: Sequence[int], n: int) -> str:
    """Name samples by their first indices: `3 of 50 samples (first: [4, 9, 11])`."""
    return f"{len(rows)} of {n} samples (first: {list(rows[:_SHOWN])})"


def _finite(value: Tensor, axes: int) -> Tensor:
    good = torch.isfinite(value)
    while good.ndim > axes:
        good = good.all(0)
    return good.reshape(len(good), -1).all(1)
