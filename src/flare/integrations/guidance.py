"""Classifier-free guidance as one network: f_w = (1+w)·f(x, t, cond) − w·f(x, t, null).

Both branches have the same parameters, so that what the posterior says of one it says of the other: their
covariance stays in every variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..network.denoiser import Denoiser, Params

Self = TypeVar("Self", bound="Guided")


class Guided(Denoiser):
    """A denoiser with guidance; its parameters and its fingerprint are those of the one inside.

    A posterior is fitted to the network as it was trained, without guidance, and used with this one.

    Args:
        inner: the network.
        scale: w; diffusers' `guidance_scale` is 1 + w.
        null: the conditions of the unconditional branch, in place of those of the same name: a number, or
            one row as a tensor. None if they come with the samples, as cond["null"].
    """

    def __init__(self, inner: Denoiser, scale: float, null: Mapping[str, Any] | None = None) -> None:
        self.__dict__.update(inner.__dict__)
        if null is not None and not null:
            raise ValueError("null must name the conditions to replace, such as null={'class_labels': 1000}.")
        self.inner, self.scale, self.null = inner, float(scale), null

    def call(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
        """(1+w)·f(params, x, t, cond) − w·f(params, x, t, null)."""
        cond = dict(cond or {})
        null = cond.pop("null", None) if self.null is None else self.null
        if not null:
            raise ValueError(
                "guidance without null= needs the conditions of the unconditional branch, one row a sample, "
                "as cond={'null': {...}, ...}."
            )
        if missing := [name for name in null if name not in cond]:
            raise ValueError(
                f"guidance replaces {missing[0]!r}, which cond has not; give cond={{{missing[0]!r}: ...}}."
            )
        empty = cond | {name: _like(value, cond[name], name) for name, value in null.items()}
        given, without = (self.inner.call(params, x, t, c) for c in (cond, empty))
        return (1 + self.scale) * given - self.scale * without

    def to(self: Self, device: torch.device | str) -> Self:
        """The same on another device."""
        return self._around(self.inner.to(device))

    def wide(self: Self, dtype: torch.dtype = torch.float32) -> Self:
        """The same in at least this dtype."""
        inner = self.inner.wide(dtype)
        return self if inner is self.inner else self._around(inner)

    def with_params(self: Self, params: Params) -> Self:
        """The same with other values of the parameters named; this one stays."""
        return self._around(self.inner.with_params(params))

    def _around(self: Self, inner: Denoiser) -> Self:
        return type(self)(inner, self.scale, self.null).by(self.derivative)


def guide(denoiser: Denoiser, scale: float, null: Mapping[str, Any] | None = None) -> Guided:
    """The denoiser with classifier-free guidance: f_w = (1+w)·f_cond − w·f_null.

    >>> flare.sample(guided(denoiser, 3.0, null={"class_labels": 1000}), steps, posterior,  # doctest: +SKIP
    ...              n=4, shape=(4, 32, 32), cond={"class_labels": torch.tensor([1, 2, 3, 4])})

    Args:
        denoiser: the network, called with conditions.
        scale: w; diffusers' `guidance_scale` is 1 + w.
        null: the conditions of the unconditional branch: a number, or one row as a tensor, for each. None
            if every sample has its own, as cond["null"].
    """
    return Guided(denoiser, scale, null)


def _like(value: Any, given: Any, name: str) -> Any:
    """The null condition, expanded to as many rows as the given one has."""
    if isinstance(given, Mapping):
        return {k: _like(value[k], v, f"{name}.{k}") if k in value else v for k, v in given.items()}
    if not isinstance(given, Tensor):
        return value
    row = torch.as_tensor(value, dtype=given.dtype, device=given.device)
    try:
        return row.expand(given.shape)
    except RuntimeError as error:
        raise ValueError(
            f"null[{name!r}] must be one row of shape {tuple(given.shape[1:])}, got {tuple(row.shape)}."
        ) from error
