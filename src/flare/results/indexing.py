"""Indices of samples from whatever users select them by: masks, indices, lists and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_indices(which: Any, n: int) -> Tensor:
    """Convert a mask, a slice, an index or a list of indices to indices (k,) in 0..n−1."""
    if isinstance(which, slice):
        return torch.tensor(range(n)[which], dtype=torch.long)
    picked = which if isinstance(which, Tensor) else torch.from_numpy(_to_array(which))
    if picked.dtype == torch.bool:
        if picked.shape != (n,):
            raise ValueError(f"the mask must have shape ({n},), got {tuple(picked.shape)}.")
        return picked.nonzero().flatten()
    if picked.numel() == 0:
        return torch.zeros(0, dtype=torch.long)
    if picked.dtype == torch.uint8 and picked.shape == (n,):
        raise TypeError(f"a mask must be of bool, got {n} numbers of {picked.dtype}; call .bool() on it.")
    if picked.is_floating_point() or picked.is_complex() or picked.ndim > 1:
        raise TypeError(
            f"select samples by a bool mask ({n},), integer indices (k,), an index or a slice, got "
            f"{picked.dtype} of shape {tuple(picked.shape)}."
        )
    picked = picked.long().reshape(-1)
    if picked.min() < -n or picked.max() >= n:
        wrong = picked[(picked < -n) | (picked >= n)][0]
        raise IndexError(f"there is no sample {int(wrong)}: the {n} samples have the indices 0 to {n - 1}.")
    return torch.where(picked < 0, picked + n, picked)


def _to_array(which: Any) -> Any:
    """A copy as an array of bools or numbers."""
    try:
        array = np.array(which)
    except (ValueError, TypeError) as error:
        raise TypeError(f"select samples by a mask, indices or a slice, got {which!r}: {error}.") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"select samples by a mask, indices or a slice, got {which!r}.")
    return array
