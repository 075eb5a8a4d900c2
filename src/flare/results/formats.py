"""Results on disk, by the suffix of the path: safetensors and npz hold everything, csv samples and scores.

All formats go through (tensors, header): tensors by name, scores as `score.NAME`, and JSON values that say
what they are.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..storage import checkpoint
from . import arrays

FORMAT = 1
OPTIONAL = ("variance", "covariance", "profile", "observed", "observed_variance")
SUFFIXES = (".safetensors", ".npz", ".csv")
_METADATA = "metadata"  # the array of an npz file that has the header as JSON
_DOT, _UNDERSCORE = "score.", "score_"  # a score in safetensors, and in npz and csv


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path to a result; raise if there is no such format."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in .safetensors, .npz or .csv.")
    return suffix


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a result, atomically; a csv file warns of what it cannot hold."""
    suffix = check_suffix(path)
    if suffix == ".safetensors":
        checkpoint.save(path, tensors, header)
    elif suffix == ".npz":
        content: dict[str, Any] = {**to_arrays(tensors), _METADATA: np.array(json.dumps(header))}
        with checkpoint.atomic(path) as partial, partial.open("wb") as file:
            np.savez(file, **content)
    else:
        left_out = [name for name in OPTIONAL if name in tensors]
        left_out += ["about"] if header["about"] else []
        if left_out:
            warnings.warn(
                f"{path} holds samples and scores alone: {', '.join(left_out)} cannot be written as csv. "
                "Write .safetensors or .npz to keep them.",
                stacklevel=3,
            )
        columns = to_columns(tensors, coordinates=True)
        # a name may have a comma in it
        names = ",".join(f'"{name}"' if "," in name else name for name in columns)
        with checkpoint.atomic(path) as partial:
            table = np.column_stack(list(columns.values()))
            np.savetxt(partial, table, delimiter=",", header=names, comments="", fmt="%.9g", encoding="utf-8")


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; npz and csv files of others, too, if they name their columns as it does."""
    suffix, path = check_suffix(path), Path(path)
    if suffix == ".safetensors":
        return checkpoint.load(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    return _load_npz(path) if suffix == ".npz" else _load_csv(path)


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """NumPy arrays by name, scores as `score_NAME`; bfloat16, which NumPy lacks, becomes float32."""
    return {
        re.sub(rf"^{re.escape(_DOT)}", _UNDERSCORE, name): (
            value.float() if value.dtype == torch.bfloat16 else value
        ).detach().cpu().numpy()
        for name, value in tensors.items()
    }  # fmt: skip


def to_columns(tensors: Mapping[str, Tensor], coordinates: bool) -> dict[str, Any]:
    """The columns of a table with one row per sample: its coordinates, if asked for, and its scores."""
    found = to_arrays({k: v for k, v in tensors.items() if k == "samples" or k.startswith(_DOT)})
    samples = found.pop("samples")
    if not coordinates:
        return found
    flat = samples.reshape(len(samples), -1).T
    return {**dict(zip(_coordinate_names(samples.shape[1:]), flat, strict=True)), **found}


def split_columns(names: list[str], values: Any) -> tuple[Any, dict[str, Any]]:
    """The samples (n, *shape) and the scores by name in a table; the names of the columns tell the shape."""
    scores = {name: i for i, name in enumerate(names) if name.startswith(_UNDERSCORE)}
    rest = [i for i in range(values.shape[1]) if not names or not names[i].startswith(_UNDERSCORE)]
    samples = values[:, rest]
    indices = [re.findall(r"_(\d{1,9})", names[i]) for i in rest] if names else []
    if indices and all(len(index) == len(indices[0]) > 1 for index in indices):
        shape = tuple(int(last) + 1 for last in indices[-1])
        if np.prod(shape, dtype=float) == len(rest) and [names[i] for i in rest] == _coordinate_names(shape):
            samples = samples.reshape(len(samples), *shape)
    return samples, {name.removeprefix(_UNDERSCORE): values[:, i] for name, i in scores.items()}


def _coordinate_names(shape: tuple[int, ...]) -> list[str]:
    """x0, x1, … for flat samples; x_0_0, x_0_1, … for others."""
    if len(shape) == 1:
        return [f"x{i}" for i in range(shape[0])]
    return ["x" + "".join(f"_{i}" for i in index) for index in product(*map(range, shape))]


def _load_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    def choose(names: Collection[str]) -> list[str]:
        known = ("samples", _METADATA, *OPTIONAL)
        return [name for name in names if name in known or name.startswith(_UNDERSCORE)]

    found = arrays.load_npz(path, choose, arrays.NUMBERS + arrays.TEXT)
    text = found.pop(_METADATA, None)
    for name, array in found.items():
        if array.dtype.kind not in arrays.NUMBERS or array.dtype.itemsize > 8:
            raise ValueError(f"{path} must hold numbers in {name}, got an array of {array.dtype}.")
    tensors = {
        re.sub(rf"^{_UNDERSCORE}", _DOT, name): torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        for name, array in found.items()
    }
    if text is None:  # an archive of others
        scores = [name.removeprefix(_DOT) for name in tensors if name.startswith(_DOT)]
        return tensors, {"format": FORMAT, "scores": scores, "about": {}}
    try:
        header = json.loads(text.item())
        if not isinstance(header, dict):
            raise TypeError(f"got {type(header).__name__}, not an object")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not whole: its metadata must be JSON ({error}).") from error
    return tensors, header


def _load_csv(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    samples, scores = split_columns(*arrays.load_csv(path))
    tensors = {"samples": torch.from_numpy(samples).float()}
    tensors |= {_DOT + name: torch.from_numpy(score).float() for name, score in scores.items()}
    return tensors, {"format": FORMAT, "scores": list(scores), "about": {}}
