"""A verdict and its reference as tensors and JSON values, for the files of results.

The names are those of an npz file and of `Result.to_numpy`. Reasons are stored as numbers of a list of words.
A csv file has a column per tensor, with reasons in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .formats import P_VALUE, P_VALUE_COLUMN, REFERENCE, VERDICT_COLUMNS
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
        if "columns" in header:  # of a csv file
            tensors, header = _read_columns(tensors["samples"], header["columns"])
        return _read_verdict(tensors, header.get(_KEY)), _read_reference(tensors, header.get("reference"))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RuntimeError) as error:
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
    """The columns of a table with one row per sample, from which a verdict can be restored."""
    if verdict is None:
        return {}
    n = len(verdict)
    found = {
        "z": verdict.z.numpy(),
        "reference_size": np.full(n, verdict.reference_size),
        "held_out": np.full(n, verdict.held_out),
        "p_value": verdict.p_value.numpy(),
        **({} if verdict.nearest is None else {"nearest": verdict.nearest.numpy()}),
        **to_words(verdict),
    }
    single = {P_VALUE_COLUMN + name: values.numpy() for name, values in verdict.p_values.items()}
    return single | {name: found[name] for name in VERDICT_COLUMNS if name in found}


def _read_columns(
    samples: Tensor, columns: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` makes of a verdict, from the text of its columns."""
    scores = [name.removeprefix(P_VALUE_COLUMN) for name in columns if name.startswith(P_VALUE_COLUMN)]
    words, flags = [*scores, NOT_SCORED], {"true": True, "false": False}
    numbers = {"p_value": "p_value", "z": "z", **{P_VALUE + name: P_VALUE_COLUMN + name for name in scores}}
    tensors = {
        name: torch.tensor([float(cell) for cell in columns[column]], dtype=torch.float64)
        for name, column in numbers.items()
    }
    tensors |= {
        "samples": samples,
        "reason": torch.tensor([words.index(word) for word in columns["reason"]]),
    }
    if "copy" in columns:
        tensors["copy"] = torch.tensor([flags[cell.lower()] for cell in columns["copy"]], dtype=torch.uint8)
    if "nearest" in columns:
        tensors["nearest"] = torch.tensor([int(cell) for cell in columns["nearest"]])
    found = {name: set(columns[name]) for name in ("reference_size", "held_out")}
    if any(len(values) > 1 for values in found.values()):
        raise ValueError("its rows were compared with different real data")
    (size,), (held_out,) = found.values()
    facts = {"scores": scores, "reference_size": int(size), "held_out": flags[held_out.lower()]}
    return tensors, {_KEY: facts}


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
