"""Conditions of a network: nested dicts and lists whose tensors have one row per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Cond = Mapping[str, Any]


def map_values(function: Callable[[Any], Any], cond: Any) -> Any:
    """Apply `function` to every value of a nested structure."""
    if isinstance(cond, Mapping):
        return {name: map_values(function, value) for name, value in cond.items()}
    if isinstance(cond, (list, tuple)):
        values = [map_values(function, value) for value in cond]
        return type(cond)(*values) if hasattr(cond, "_fields") else type(cond)(values)
    return function(cond)


def has_rows(value: Any) -> bool:
    """Whether a value has one row per sample: true of every tensor with at least one axis."""
    return isinstance(value, Tensor) and value.ndim > 0


def take_rows(cond: Cond | None, rows: slice | Tensor) -> dict[str, Any]:
    """Select the conditions of some samples; values without rows are shared by all samples."""
    return map_values(lambda value: value[rows] if has_rows(value) else value, cond or {})


def trial_rows(cond: Cond) -> Tensor:
    """Rows for a trial call: the first two, and those with the smallest and the largest labels."""
    labels = [v for v in cond.values() if has_rows(v) and v.dtype in (torch.int32, torch.int64)]
    ends = [int(find(v)) // v[0].numel() for v in labels for find in (torch.argmin, torch.argmax)]
    return torch.tensor([0, 1, *ends])


def detach(cond: Cond | None) -> dict[str, Any]:
    """Copies of the conditions, detached from the graph of a text encoder, for example."""
    return map_values(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, cond or {})


def to_device(cond: Cond, device: torch.device | str) -> dict[str, Any]:
    """Move all tensors of the conditions to a device."""
    return map_values(lambda value: value.to(device) if isinstance(value, Tensor) else value, cond)


def check_conditions(cond: Cond | None, n: int) -> dict[str, Any]:
    """Return the conditions as a dict; raise unless each of their tensors has n rows."""
    if cond is None:
        return {}
    if not isinstance(cond, Mapping):
        raise TypeError(
            f"cond must be a dict of the network's keyword arguments, got {type(cond).__name__}; "
            "for instance cond={'class_labels': labels}."
        )
    _check_rows("cond", cond, n)
    return dict(cond)


def _check_rows(name: str, value: Any, n: int) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_rows(f"{name}[{key!r}]", inner, n)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_rows(f"{name}[{index}]", inner, n)
    elif has_rows(value) and len(value) != n:
        raise ValueError(
            f"{name} must have one row per sample, {n}, got shape {tuple(value.shape)}; "
            "expand it to the number of samples."
        )
