"""Samples that are lost: NaN or infinity costs the samples that have it, and none of the others."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

ADVICE = "Clip x̂0 in the sampler (clip=...), or look for unscaled inputs or a diverged training."
_SHOWN = 5  # steps, and samples of each, that a message names


def find_nonfinite(values: Iterable[Tensor], axes: int) -> Tensor | None:
    """Which samples have NaN or infinity in any of the values, (B,) bool; None if none has.

    Args:
        values: tensors (..., B, *shape).
        axes: how many of the last axes are (B, *shape).
    """
    values = list(values)
    # a sum is finite unless something in it is not (or it overflows): ten times cheaper to ask
    if not values or math.isfinite(reduce(torch.add, (value.sum() for value in values))):
        return None
    found = torch.stack([~_finite(value, axes) for value in values]).any(0)
    return found if found.any() else None


def carried(state: Any, shape: torch.Size) -> Iterator[Tensor]:
    """The tensors of shape (..., *shape) in a rule's state: in its dataclasses and tuples, not in dicts."""
    if isinstance(state, Tensor):
        if state.shape[-len(shape) :] == shape:
            yield state
    else:
        for _, part in _parts(state):
            yield from carried(part, shape)


def emptied(state: Any, lost: Tensor, shape: torch.Size) -> Any:
    """The same state with zeros for the lost samples, so that the rest is computed on finite numbers."""
    if isinstance(state, Tensor):
        return fill_rows(state, lost, 0.0, len(shape)) if state.shape[-len(shape) :] == shape else state
    parts = [(name, emptied(part, lost, shape)) for name, part in _parts(state)]
    if isinstance(state, (list, tuple)):
        values = [part for _, part in parts]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    if parts:
        state = copy.copy(state)
        for name, part in parts:
            object.__setattr__(state, name, part)  # states are frozen, and this one is ours
    return state


def fill_rows(value: Tensor, lost: Tensor, number: float, axes: int) -> Tensor:
    """The tensor (..., B, *shape), of which `axes` are (B, *shape), with a number for the lost samples."""
    return value.masked_fill(lost.view(-1, *[1] * (axes - 1)), number)


class AllLostError(ValueError):
    """Every sample of a call has NaN or infinity.

    Attributes:
        where: the indices of the samples by where they were lost.
    """

    def __init__(self, message: str, where: dict[str, list[int]]) -> None:
        super().__init__(message)
        self.where = where


class LostSamples:
    """Which samples of a call are lost, and where each was.

    Args:
        n: how many samples there are.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._where: dict[int, str] = {}

    def add(self, lost: Tensor | None, first: int, where: str) -> None:
        """Note lost samples (B,), the first of which has the index `first`; raise if none of all is left."""
        if lost is None:
            return
        for index in (lost.nonzero().flatten() + first).tolist():
            self._where.setdefault(index, where)
        if len(self._where) == self.n:
            raise AllLostError(f"{self._told()}. {ADVICE}", self.about)

    @property
    def about(self) -> dict[str, list[int]]:
        """The indices of the lost samples by where they were lost."""
        places: dict[str, list[int]] = {}
        for index, where in sorted(self._where.items()):
            places.setdefault(where, []).append(index)
        return places

    @property
    def warning(self) -> str:
        """What to tell the user."""
        return f"{self._told()}; they come back as NaN, the others are as if alone. {ADVICE}"

    def _told(self) -> str:
        places = [
            f"{where} has NaN or infinity in {name_samples(rows, self.n)}"
            for where, rows in self.about.items()
        ]
        more = [f"and {len(places) - _SHOWN} more such steps"] if len(places) > _SHOWN else []
        return "; ".join(places[:_SHOWN] + more)


def name_samples(rows: Sequence[int], n: int) -> str:
    """Some of the samples by their indices: `3 of 50 samples (first: [4, 9, 11])`."""
    return f"{len(rows)} of {n} samples (first: {list(rows[:_SHOWN])})"


def _finite(value: Tensor, axes: int) -> Tensor:
    good = torch.isfinite(value)
    while good.ndim > axes:
        good = good.all(0)
    return good.reshape(len(good), -1).all(1)


def _parts(state: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(state):
        yield from ((field.name, getattr(state, field.name)) for field in fields(state))
    elif isinstance(state, (list, tuple)):
        yield from (("", part) for part in state)
