"""Validation of arguments: every error says what was expected, what was received, and what to do."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHECKED = 2**22  # numbers of the data that are checked at once


def require_instance(what: str, value: Any, kind: type, advice: str) -> None:
    """Raise a TypeError with advice unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, got {type(value).__name__}; {advice}.")


def one_of(kind: str, name: str, options: Iterable[str]) -> str:
    """Return `name` if it is one of `options`; otherwise raise with the nearest match.

    >>> one_of("schedule", "cosin", ["cosine", "linear"])
    Traceback (most recent call last):
    ValueError: unknown schedule 'cosin'; did you mean 'cosine'? Choose from: cosine, linear.
    """
    known = sorted(options)
    if name in known:
        return name
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    raise ValueError(f"unknown {kind} {name!r}{hint} Choose from: {', '.join(known)}.")


def require_positive_int(what: str, value: int) -> int:
    """Return `value` as an int if it is an integer of at least 1; NumPy integers are accepted."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{what} must be an integer of at least 1, got {value!r}.")
    return operator.index(value)


def require_device(what: str, name: torch.device | str) -> torch.device:
    """Return a device; raise if this machine does not have it."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    found = [f"{kind}:{i}" if kind == "cuda" else kind for kind, n in counts.items() for i in range(n)]
    try:
        device = torch.device(name)
        # counted, not tried with a tensor: each of several processes chooses its own GPU later
        if device.type in counts and (device.index or 0) >= counts[device.type]:
            raise RuntimeError("torch does not see such a device")
        if device.type not in counts:
            torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"{what} {name} cannot be used: {reason}. Choose from: {', '.join(found)}."
        ) from error
    return device


def require_tensor(what: str, data: Any) -> Tensor:
    """Return a tensor or an array of samples as a tensor."""
    if isinstance(data, np.ndarray):
        data = torch.as_tensor(data.astype(data.dtype.newbyteorder("="), copy=False))  # as torch needs it
    if not isinstance(data, Tensor):
        raise TypeError(
            f"{what} must be a tensor or an array of shape (n, *shape), got {type(data).__name__}; "
            "convert a list of numbers with torch.as_tensor."
        )
    return data


def find_range(data: Tensor) -> tuple[float, float]:
    """The smallest and the largest number of data."""
    low, high = torch.aminmax(data)
    return float(low), float(high)


def require_samples(what: str, data: Any) -> Tensor:
    """Return `data` as a tensor if it is a non-empty, finite, floating-point batch (n, *shape)."""
    data = require_tensor(what, data)
    if data.ndim < 2:
        raise ValueError(f"{what} must have shape (n, *shape) with at least 2 axes, got {tuple(data.shape)}.")
    if data.numel() == 0:
        raise ValueError(f"{what} is empty: got shape {tuple(data.shape)}; give at least 1 sample.")
    if not data.is_floating_point():
        raise TypeError(
            f"{what} must be floating point, got {data.dtype}; call .float() on it, and scale "
            "it as in training (for instance images from 0..255 by x / 127.5 - 1)."
        )
    parts = data.split(max(1, CHECKED // data[0].numel()))  # a copy of all may not fit into memory
    bad = torch.cat([~torch.isfinite(part).flatten(1).all(1) for part in parts])
    if bad.any():
        first = bad.nonzero().flatten()[:5].tolist()
        raise ValueError(
            f"{what} has NaN or infinity in {int(bad.sum())} of {len(data)} samples "
            f"(first rows: {first}); remove or impute them."
        )
    return data
