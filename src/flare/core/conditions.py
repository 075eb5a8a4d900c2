"""Conditions of a network: nested dicts and lists of tensors with one row a sample, and of anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Cond = Mapping[str, Any]


def map_values(function: Callable[[Any], Any], cond: Any) -> Any:
    """The same nesting, with `function` of every value in it."""
    if isinstance(cond, Mapping):
        return {name: map_values(function, value) for name, value in cond.items()}
    if isinstance(cond, (list, tuple)):
        return type(cond)(map_values(function, value) for value in cond)
    return function(cond)


def has_rows(value: Any) -> bool:
    """Whether a value has one row a sample: every tensor but single numbers."""
    return isinstance(value, Tensor) and value.ndim > 0


def take_rows(cond: Mapping[str, Any] | None, here: slice | Tensor) -> dict[str, Any]:
    """The conditions of some samples: rows of the tensors that have rows."""
    return map_values(lambda value: value[here] if has_rows(value) else value, cond or {})


def to_device(cond: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """The same conditions on a device."""
    return map_values(lambda value: value.to(device) if isinstance(value, Tensor) else value, cond)


def check_conditions(cond: Mapping[str, Any] | None, n: int) -> dict[str, Any]:
    """The conditions as a dict, if every tensor in them has n rows."""
    if cond is None:
        return {}
    if not isinstance(cond, Mapping):
        raise TypeError(
            f"cond must be a dict of the network's keyword arguments, got {type(cond).__name__}; "
            "for instance cond={'class_labels': labels}."
        )

    def check(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                check(f"{name}[{key!r}]", inner)
        elif isinstance(value, (list, tuple)):
            for place, inner in enumerate(value):
                check(f"{name}[{place}]", inner)
        elif has_rows(value) and len(value) != n:
            raise ValueError(
                f"{name} must have one row a sample, {n}, got shape {tuple(value.shape)}; "
                "expand it to the number of samples."
            )

    check("cond", cond)
    return dict(cond)
