"""Results on disk: safetensors and npz hold everything, csv holds samples, scores and verdicts.

Every format stores (tensors, header): tensors by name, with scores as `score.NAME`, and JSON values.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..core.warn import warn
from ..storage import checkpoint
from . import arrays

FORMAT = 1
OPTIONAL = ("variance", "covariance", "profile", "observed", "observed_variance")
Suffix = Literal[".safetensors", ".npz", ".csv"]
SUFFIXES: tuple[Suffix, ...] = get_args(Suffix)
REGIONS, _REGION = "regions", "region"  # the regions among the tensors, and their column in csv
SCORE = "score."  # prefix of the scores among the tensors
P_VALUE, REFERENCE = "p_value.", "reference."  # of the p-values of single scores, of the scores of real data
VERDICT = ("p_value", "z", "reason", "copy", "nearest")  # the other tensors of a verdict
#: the columns of a verdict in a table with one row per sample, besides the p-values of single scores
VERDICT_COLUMNS = ("z", "nearest", "reference_size", "held_out", "p_value", "verdict", "reason", "copy")
_OLD_COLUMNS = ("p_value", "verdict", "reason", "copy")  # all that version 0.4 wrote
_OPTIONAL_COLUMNS = ("nearest", "copy")
_COLUMN = "score_"  # prefix of the scores in npz and csv
#: prefixes of names in memory, and in npz and csv
_PREFIXES = {prefix: prefix[:-1] + "_" for prefix in (SCORE, P_VALUE, REFERENCE)}
P_VALUE_COLUMN = _PREFIXES[P_VALUE]
_WIDE = re.compile(r"\d(\.?\d){14}")  # a number with more digits than a csv file has for float32
_METADATA = "metadata"  # array of an npz file that holds the header as JSON


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path; raise if results have no such format."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in .safetensors, .npz or .csv.")
    return suffix


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> None:
    """Write a result atomically, in the format of its suffix.

    Args:
        path: the file.
        tensors: by name.
        header: JSON values.
        columns: more columns of a csv file, numbers or text.
    """
    suffix = check_suffix(path)
    if suffix == ".safetensors":
        checkpoint.save(path, tensors, header)
    elif suffix == ".npz":
        content: dict[str, Any] = {**to_arrays(tensors), _METADATA: np.array(json.dumps(header))}
        with checkpoint.atomic(path) as partial, partial.open("wb") as file:
            np.savez(file, **content)
    else:
        left_out = [name for name in OPTIONAL if name in tensors]
        left_out += [name for name in ("about", "reference") if header.get(name)]
        if left_out:
            warn(
                f"{path}: {', '.join(left_out)} cannot be written as csv. Write .safetensors or .npz to keep "
                "them.",
                UserWarning,
            )
        _save_csv(path, to_columns(tensors, coordinates=True), columns)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote, or npz and csv files of other programs that use the same names.

    Raises:
        ValueError: if the file is damaged, or its tensors do not belong to one result.
    """
    suffix, path = check_suffix(path), Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no file at {path}; expected samples, as `flare sample`, `flare score` or Result.save writes "
            "them."
        )
    read = {".safetensors": checkpoint.load, ".npz": _load_npz, ".csv": _load_csv}[suffix]
    tensors, header = read(path)
    _check_header(path, tensors, header)
    _check_shapes(path, tensors, header["scores"])
    return tensors, header


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Convert to NumPy arrays, with scores as `score_NAME`; bfloat16, which NumPy lacks, becomes float32."""
    return {
        _swap_prefix(name, _PREFIXES): (value.float() if value.dtype == torch.bfloat16 else value)
        .detach().cpu().numpy()
        for name, value in tensors.items()
    }  # fmt: skip


def to_columns(tensors: Mapping[str, Tensor], coordinates: bool) -> dict[str, Any]:
    """Columns of a table with one row per sample: its scores and region, and on request its coordinates."""
    found = to_arrays({k: v for k, v in tensors.items() if k in ("samples", REGIONS) or k.startswith(SCORE)})
    if REGIONS in found:
        found[_REGION] = found.pop(REGIONS)
    samples = found.pop("samples")
    if not coordinates:
        return found
    flat = samples.reshape(len(samples), -1).T
    return {**dict(zip(coordinate_names(samples.shape[1:]), flat, strict=True)), **found}


def _swap_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    """Replace the prefix of a name, if it has one of these."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


class Table(NamedTuple):
    """Samples and scores of a csv file.

    Attributes:
        columns: names of the coordinates; empty without a header.
        samples: (n, *shape).
        scores: by name.
    """

    columns: list[str]
    samples: Any
    scores: dict[str, Any]


def load_table(path: Path) -> Table:
    """Read the samples and the scores of a csv file; the columns of a verdict are left out."""
    return split_columns(*arrays.load_csv(path, _find_verdict))


def _find_verdict(names: Collection[str]) -> Collection[str]:
    """The columns of a verdict among the names of a table; other data may use some of these names, too."""
    if {*VERDICT_COLUMNS}.difference(_OPTIONAL_COLUMNS) <= {*names}:
        known = (*VERDICT_COLUMNS, _REGION)
        return [name for name in names if name in known or name.startswith(P_VALUE_COLUMN)]
    return (*_OLD_COLUMNS, _REGION) if any(name.startswith(_COLUMN) for name in names) else ()


def split_columns(names: list[str], values: Any) -> Table:
    """Split a table (n, columns) into samples (n, *shape) and scores; column names encode the shape."""
    scores = {name: i for i, name in enumerate(names) if name.startswith(_COLUMN)}
    rest = [i for i in range(values.shape[1]) if not names or not names[i].startswith(_COLUMN)]
    samples, columns = values[:, rest], [names[i] for i in rest] if names else []
    indices = [re.findall(r"_(\d{1,9})", name) for name in columns]
    if indices and all(len(index) == len(indices[0]) > 1 for index in indices):
        shape = tuple(int(last) + 1 for last in indices[-1])
        if np.prod(shape, dtype=float) == len(rest) and columns == coordinate_names(shape):
            samples = samples.reshape(len(samples), *shape)
    return Table(columns, samples, {name.removeprefix(_COLUMN): values[:, i] for name, i in scores.items()})


def coordinate_names(shape: tuple[int, ...]) -> list[str]:
    """x0, x1, … for flat samples; x_0_0, x_0_1, … for samples with several axes."""
    if len(shape) == 1:
        return [f"x{i}" for i in range(shape[0])]
    return ["x" + "".join(f"_{i}" for i in index) for index in product(*map(range, shape))]


def _load_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    def choose(names: Collection[str]) -> list[str]:
        known = ("samples", REGIONS, _METADATA, *OPTIONAL, *VERDICT)
        return [name for name in names if name in known or name.startswith(tuple(_PREFIXES.values()))]

    found = arrays.load_npz(path, choose, arrays.NUMBERS + arrays.TEXT)
    text = found.pop(_METADATA, None)
    for name, array in found.items():
        if array.dtype.kind not in arrays.NUMBERS or array.dtype.itemsize > 8:
            raise ValueError(f"{path} must hold numbers in {name}, got an array of {array.dtype}.")
    back = {column: prefix for prefix, column in _PREFIXES.items()}
    tensors = {
        _swap_prefix(name, back): torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        for name, array in found.items()
    }
    if text is None:  # written by another program
        scores = [name.removeprefix(SCORE) for name in tensors if name.startswith(SCORE)]
        return tensors, {"format": FORMAT, "scores": scores, "about": {}}
    try:
        header = json.loads(text.item())
        if not isinstance(header, dict):
            raise TypeError(f"got {type(header).__name__}, not an object")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its metadata must be JSON ({error}).") from error
    return tensors, header


def _load_csv(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    columns, samples, scores = load_table(path)
    cells = arrays.load_cells(path) if columns or scores else {}

    def to_tensor(values: Any, names: Collection[str]) -> Tensor:
        wide = any(_WIDE.search(cell) for name in names for cell in cells[name])
        return torch.from_numpy(values) if wide else torch.from_numpy(values).float()

    tensors = {"samples": to_tensor(samples, columns)}
    tensors |= {SCORE + name: to_tensor(score, [_COLUMN + name]) for name, score in scores.items()}
    header: dict[str, Any] = {"format": FORMAT, "scores": list(scores), "about": {}}
    if _REGION in cells and _REGION not in columns:
        try:
            tensors[REGIONS] = torch.tensor([int(cell) for cell in cells[_REGION]])
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{path} must hold integers in the column {_REGION}: {error}.") from error
    verdict = {name: cells[name] for name in _find_verdict(cells) if name in cells and name != _REGION}
    if "z" in verdict:
        header["columns"] = verdict
    elif "p_value" in verdict:
        warn(
            f"{path} has p-values, but not the rest of a verdict, as if written by version 0.4: they are "
            "left out. Score the samples again.",
            UserWarning,
        )
    return tensors, header


def _save_csv(path: str | os.PathLike[str], numbers: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    """Write columns with all their digits, by which `_load_csv` tells float64 from float32 in `numbers`."""
    texts = [
        column.tolist()
        if column.dtype.kind == "i"
        else [format(value, ".9g" if column.dtype.itemsize <= 4 else "#.17g") for value in column.tolist()]
        for column in numbers.values()
    ]
    with checkpoint.atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*numbers, *more])
        table.writerows(zip(*texts, *(column.tolist() for column in more.values()), strict=True))


def _check_header(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Raise if a file is not a result, or its header does not match its tensors."""
    if header.get("format") != FORMAT or "samples" not in tensors or "scores" not in header:
        raise ValueError(f"{path} is not a file of samples of format {FORMAT}; write it with Result.save.")
    names, about = header["scores"], header.get("about", {})
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{path} must list its scores by name, got {names!r}.")
    if not isinstance(about, dict):
        raise ValueError(f"{path} must have a dict as 'about', got {about!r}.")
    missing = [name for name in names if SCORE + name not in tensors]
    if missing:
        raise ValueError(f"{path} is incomplete: it has no score {', '.join(missing)}.")


def _check_shapes(path: Path, tensors: Mapping[str, Tensor], scores: Collection[str]) -> None:
    """Raise if a tensor of a file does not have the dtype and shape that belong to its samples."""
    shape = tuple(tensors["samples"].shape)
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"{path} must hold samples of shape (n, *shape), got {shape}.")
    n, d = shape[0], math.prod(shape[1:])
    expected: dict[str, tuple[Any, ...]] = {
        "samples": shape, "variance": shape, "covariance": (n, d, d), "profile": (n, "steps"),
        "observed": (n, ...), "observed_variance": (n, ...),
    }  # fmt: skip
    parts = [(name, tensors[name], form) for name, form in expected.items() if name in tensors]
    parts += [(f"score {name!r}", tensors[SCORE + name], (n,)) for name in scores]
    for name, value, form in parts:
        if not (value.is_floating_point() and _matches(tuple(value.shape), form)):
            raise ValueError(
                f"{path} has {name} as {value.dtype} of shape {tuple(value.shape)}; with samples of shape "
                f"{shape} it must be floating point of shape ({', '.join(map(str, form))})."
            )
    regions = tensors.get(REGIONS)
    if regions is not None and (regions.dtype != torch.int64 or regions.shape != (n,)):
        raise ValueError(
            f"{path} has regions as {regions.dtype} of shape {tuple(regions.shape)}; they must be int64 of "
            f"shape ({n},), one label per sample."
        )


def _matches(shape: tuple[int, ...], form: tuple[Any, ...]) -> bool:
    """Whether a shape matches a form: a word matches any length, a trailing ... any further axes."""
    if form[-1] is ...:
        form = form[:-1] + shape[len(form) - 1 :]
    return len(shape) == len(form) and all(
        isinstance(b, str) or a == b for a, b in zip(shape, form, strict=True)
    )
