"""A verdict and its reference as tensors and JSON values, for the files of results.

The names are those of an npz file and of `Result.to_numpy`. Reasons are stored as numbers of a list of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .formats import P_VALUE, REFERENCE, VERDICT_COLUMNS
from .reference import Reference
from .verdict import NOT_SCORED, Verdict

_KEY = "verdict"  # of the header


def pack(verdict: Verdict | None, reference: Reference | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and what to add to the header."""
    tensors: dict[str, Tensor] = {}
    header: dict[str, Any] = {}
    if verdict is not None:
        words = [*verdict.p_values, NOT_SCORED]
        tensors |= {"p_value": verdict.p_value, "z": verdict.z}
        tensors |= {P_VALUE + name: values for name, values in verdict.p_values.items()}
        tensors["reason"] = torch.tensor([words.index(reason) for reason in verdict.reason])
        if verdict.copies is not None:
            tensors["copy"] = verdict.copies.to(torch.uint8)
        if verdict.nearest is not None:
            tensors["nearest"] = verdict.nearest
        header[_KEY] = {
            "scores": list(verdict.p_values),
            "reference_size": verdict.reference_size,
            "held_out": verdict.held_out,
        }
    if reference is not None:
        tensors |= {REFERENCE + name: values for name, values in reference.scores.items()}
        header["reference"] = {
            "scores": list(reference.scores),
            "held_out": reference.held_out,
            "log_scores": list(reference.log_scores),
        }
    return tensors, header


def unpack(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> tuple[Verdict | None, Reference | None]:
    """Restore what `pack` made; raise a ValueError that names a damaged file."""
    try:
        return _read_verdict(tensors, header.get(_KEY)), _read_reference(tensors, header.get("reference"))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged: its verdict or reference is incomplete ({error!r}). Write it again."
        ) from error


def to_words(verdict: Verdict | None) -> dict[str, Any]:
    """NumPy arrays that say in words what a file stores as numbers."""
    if verdict is None:
        return {}
    words = {"reason": np.array(list(verdict.reason), dtype=str), "verdict": np.array(verdict.labels(), str)}
    return words if verdict.copies is None else words | {"copy": verdict.copies.numpy()}


def to_columns(verdict: Verdict | None) -> dict[str, Any]:
    """The columns of a table with one row per sample."""
    if verdict is None:
        return {}
    found = {"p_value": verdict.p_value.numpy(), **to_words(verdict)}
    return {name: found[name] for name in VERDICT_COLUMNS if name in found}


def _read_verdict(tensors: Mapping[str, Tensor], header: Any) -> Verdict | None:
    if header is None:
        return None
    n = len(tensors["samples"])
    for name in ("p_value", "z", *(P_VALUE + name for name in header["scores"])):
        _check(name, tensors[name], n, floating=True)
    for name in ("reason", *(name for name in ("copy", "nearest") if name in tensors)):
        _check(name, tensors[name], n, floating=False)
    size, held_out = header["reference_size"], header["held_out"]
    codes = tensors["reason"].tolist()
    words = [*map(str, header["scores"]), NOT_SCORED]
    if type(size) is not int or size < 1 or type(held_out) is not bool or min(codes, default=0) < 0:
        raise ValueError(f"reference_size={size!r}, held_out={held_out!r}")
    return Verdict(
        p_value=tensors["p_value"],
        z=tensors["z"],
        p_values={name: tensors[P_VALUE + name] for name in words[:-1]},
        reason=[words[code] for code in codes],
        reference_size=size,
        held_out=held_out,
        copies=tensors["copy"].bool() if "copy" in tensors else None,
        nearest=tensors["nearest"].long() if "nearest" in tensors else None,
    )


def _read_reference(tensors: Mapping[str, Tensor], header: Any) -> Reference | None:
    if header is None:
        return None
    if type(header["held_out"]) is not bool:
        raise ValueError(f"held_out={header['held_out']!r}")
    scores = {name: tensors[REFERENCE + name] for name in header["scores"]}
    return Reference(scores, header["held_out"], tuple(header["log_scores"]))


def _check(name: str, values: Tensor, n: int, floating: bool) -> None:
    if values.shape != (n,) or values.is_floating_point() != floating:
        raise ValueError(f"{name} is {values.dtype} of shape {tuple(values.shape)} for {n} samples")
