"""Classifier-free guidance as one network: f_w = (1+w)·f(x, t, cond) − w·f(x, t, null).

Both branches share the same parameters, so every variance includes their covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import Cond
from .denoiser import Denoiser, Predict


def guide(denoiser: Denoiser, scale: float, null: Mapping[str, Any] | None = None) -> Denoiser:
    """The denoiser with classifier-free guidance: f_w = (1+w)·f_cond − w·f_null.

    The guided denoiser has the same parameters and the same fingerprint: fit the posterior to the network as
    it was trained, without guidance, and use it with the guided one.

    >>> model = flare.from_diffusers(class_pipe)
    >>> guided = flare.network.guidance.guide(model.denoiser, 3.0, null={"class_labels": 10})
    >>> labels = torch.tensor([1, 2, 3, 4])
    >>> result = flare.sample(
    ...     guided, model.steps(5), n=4, shape=(1, 8, 8), cond={"class_labels": labels}
    ... )

    Args:
        denoiser: The network, called with conditions.
        scale: w; diffusers' `guidance_scale` is 1 + w.
        null: The conditions of the unconditional branch, which replace conditions of the same name: a number,
            or one row as a tensor, for each. None if every sample has its own, as cond["null"].
    """
    if null is not None and not null:
        raise ValueError("null must name the conditions to replace, such as null={'class_labels': 1000}.")
    return denoiser.with_combination(partial(_combine, float(scale), null))


def _combine(scale: float, null: Mapping[str, Any] | None, predict: Predict, cond: Cond | None) -> Tensor:
    """(1+w)·f(x, t, cond) − w·f(x, t, null)."""
    given = dict(cond or {})
    own = given.pop("null", None) if null is None else null
    if not own:
        raise ValueError(
            "guidance without null= needs the conditions of the unconditional branch, one row per "
            "sample, as cond={'null': {...}, ...}."
        )
    if missing := [name for name in own if name not in given]:
        raise ValueError(
            f"guidance replaces {missing[0]!r}, which is not in cond; give cond={{{missing[0]!r}: ...}}."
        )
    empty = given | {name: _expand(value, given[name], name) for name, value in own.items()}
    return (1 + scale) * predict(given) - scale * predict(empty)


def _expand(value: Any, given: Any, name: str) -> Any:
    """The null condition with as many rows as the given one."""
    if isinstance(given, Mapping):
        return {k: _expand(value[k], v, f"{name}.{k}") if k in value else v for k, v in given.items()}
    if not isinstance(given, Tensor):
        return value
    row = torch.as_tensor(value, dtype=given.dtype, device=given.device)
    try:
        return row.expand(given.shape)
    except RuntimeError as error:
        raise ValueError(
            f"null[{name!r}] must be one row of shape {tuple(given.shape[1:])}, got {tuple(row.shape)}."
        ) from error
