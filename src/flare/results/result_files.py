"""Files of results and of arrays: safetensors, npz, npy and csv.

safetensors and npz hold everything: tensors by name, with scores as `score.NAME`, and a header of JSON
values. csv holds samples, scores and verdicts for other programs. Nothing is pickled, and a file that does
not fit into the free memory raises an error.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core import memory
from ..core.progress import warn
from ..storage import checkpoint
from .verdict import DAMAGE, P_VALUE, SCORE, TRUSTED, Verdict, restore_reference

if TYPE_CHECKING:
    from .result import Result

FORMAT = 1
SUFFIXES = (".safetensors", ".npz", ".csv")
OPTIONAL = ("variance", "covariance", "profile", "observed", "observed_variance", "regions")
REFERENCE = "reference."  # prefix of the scores of real data among the tensors
#: prefixes of names in memory, and in npz and csv
_PREFIXES = {prefix: prefix[:-1] + "_" for prefix in (SCORE, P_VALUE, REFERENCE)}
_SCORE = _PREFIXES[SCORE]
_VERDICT = ("p_value", "z", "reason", "copy", "nearest")  # tensors of a verdict without a prefix
_INTEGERS = ("regions", "reason", "copy", "nearest")  # all other tensors are floating point
VERDICT = ("score", "p_value", "verdict", "reason", "region")  # the last columns of a scored table
_METADATA = "metadata"  # array of an npz file that holds the header as JSON
OWN = "flare_"  # prefix of own columns where the columns of a table have the same names
_Parts = tuple[dict[str, Tensor], dict[str, Any]]


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path; raise if results have no such format."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in .safetensors, .npz or .csv.")
    return suffix


def save(path: str | os.PathLike[str], result: Result, about: Mapping[str, Any]) -> None:
    """Write a result atomically, in the format of the path's suffix."""
    suffix = check_suffix(path)
    tensors, header = pack(result)
    header["about"] = dict(about)
    if suffix == ".safetensors":
        checkpoint.save(path, tensors, header)
    elif suffix == ".npz":
        content: dict[str, Any] = {**_to_arrays(tensors), _METADATA: np.array(json.dumps(header))}
        with checkpoint.atomic(path) as partial, partial.open("wb") as file:
            np.savez(file, **content)
    else:
        warn(
            f"{path}: csv holds samples, scores and verdicts. Write .safetensors or .npz to keep the "
            "rest, and to read the result again.",
            UserWarning,
        )
        _save_csv(path, result)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the fields of a result that `save` or, with the same names, another program wrote.

    Raises:
        ValueError: If the file is damaged, or its tensors do not belong to one result.
    """
    suffix, path = check_suffix(path), Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no file at {path}; expected samples, as `flare sample`, `flare score` or Result.save writes "
            "them."
        )
    if suffix == ".csv":
        raise ValueError(
            f"{path} cannot be read as a result: csv is for other programs. Write .safetensors or .npz "
            "instead."
        )
    tensors, header = checkpoint.load(path) if suffix == ".safetensors" else _load_npz(path)
    _check_header(path, tensors, header)
    _check_shapes(path, tensors, ("samples", *OPTIONAL, *(SCORE + name for name in header["scores"])))
    try:
        verdict = _restore_verdict(path, tensors, header.get("verdict"))
        facts = header.get("reference")
        reference = None if facts is None else restore_reference(tensors, REFERENCE, facts)
    except DAMAGE as error:
        raise ValueError(
            f"{path} is damaged: its verdict or reference is incomplete ({error!r}). Write it again."
        ) from error
    return {
        "samples": tensors["samples"],
        "scores": {name: tensors[SCORE + name] for name in header["scores"]},
        "about": header.get("about", {}),
        "verdict": verdict,
        "reference": reference,
        **{name: tensors.get(name) for name in OPTIONAL},
    }


def pack(result: Result) -> _Parts:
    """All tensors of a result by name, and its header without `about`."""
    tensors = result._rows()
    header: dict[str, Any] = {"format": FORMAT, "scores": list(result.scores)}
    if result.verdict is not None:
        header["verdict"] = result.verdict.facts
    if (reference := result.reference) is not None:
        tensors |= {REFERENCE + name: values for name, values in reference.scores.items()}
        header["reference"] = reference.facts
    return tensors, header


def to_arrays(result: Result) -> dict[str, Any]:
    """NumPy arrays by name, as in an npz file, but with words where the file stores numbers."""
    arrays = _to_arrays(pack(result)[0])
    if (verdict := result.verdict) is not None:
        arrays |= {"reason": np.array(verdict.reason, str), "verdict": np.array(verdict.labels(), str)}
        arrays |= {} if verdict.copies is None else {"copy": verdict.copies.numpy()}
    return arrays


def to_columns(result: Result, coordinates: bool = True) -> dict[str, Any]:
    """Columns of a table with one row per sample: samples in the units of their table, scores and verdict.

    Args:
        result: The result.
        coordinates: Whether to include the samples.
    """
    found = _to_arrays({"samples": result.samples, **{SCORE + name: s for name, s in result.scores.items()}})
    samples = found.pop("samples")
    columns: dict[str, Any] = {}
    if coordinates:
        if scaling := result.about.get("scaling"):
            mean, std = (np.array(scaling[key], dtype=np.float64) for key in ("mean", "std"))
            grid = 10.0 ** (6 - np.floor(np.log10(std)))  # what float32 resolves, so that 3 returns as 3
            samples = (np.round((samples * std + mean) * grid) / grid).astype(samples.dtype)
        names = result.about.get("columns") or ()
        if len({*names}) != math.prod(samples.shape[1:]):
            names = coordinate_names(samples.shape[1:])
        columns = dict(zip(names, samples.reshape(len(samples), -1).T, strict=True))
    columns |= {OWN + name if name in columns else name: values for name, values in found.items()}
    if result.verdict is None:
        return columns
    return columns | dict(zip(name_verdict(columns), to_verdict_columns(result), strict=True))


def to_verdict_columns(result: Result) -> tuple[Any, ...]:
    """The columns `VERDICT`. The score is the combined z, and the reason of trusted samples is empty."""
    verdict = result.verdict
    assert verdict is not None
    labels = verdict.labels()
    reasons = ["" if own == TRUSTED else why for own, why in zip(labels, verdict.reason, strict=True)]
    regions = [""] * len(labels) if result.regions is None else result.regions.numpy()
    return verdict.z.numpy(), verdict.p_value.numpy(), labels, reasons, regions


def is_scored(names: Sequence[str]) -> bool:
    """Whether the last columns of a table are those of a verdict."""
    return tuple(name.removeprefix(OWN) for name in names[-len(VERDICT) :]) == VERDICT


def name_verdict(names: Collection[str]) -> list[str]:
    """The names of the columns of a verdict in a table with these columns."""
    return [OWN + name if name in names else name for name in VERDICT]


def coordinate_names(shape: tuple[int, ...]) -> list[str]:
    """x0, x1, … for flat samples; x_0_0, x_0_1, … for samples with several axes."""
    if len(shape) == 1:
        return [f"x{i}" for i in range(shape[0])]
    return ["x" + "".join(f"_{i}" for i in index) for index in product(*map(range, shape))]


def load_table(path: Path) -> tuple[list[str], Any, dict[str, Any]]:
    """Read the samples and the scores of a csv file, float64, without the verdict.

    A first column that only numbers the rows, as pandas writes it, is dropped with a warning.

    Returns:
        The names of the coordinates (none without a header), the samples (n, *shape), whose shape the names
        encode, and the scores by name.
    """
    with _name_file_in_errors(path):
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        first = next(csv.reader(lines[:1]), [])
    names = [] if is_numeric(first) else first
    if not names and len(first) > 1 and first == [str(i) for i in range(len(first))]:
        names = first
        warn(f"{path}: the first row, 0 to {len(first) - 1}, is read as names.", UserWarning)
    rows = lines[int(bool(names)) :]
    if not rows or not first:
        raise ValueError(f"{path} has no rows of numbers.")
    kept = None
    if is_scored(names):
        names = names[: -len(VERDICT)]
        kept = range(len(names))
    try:
        values = np.loadtxt(rows, delimiter=",", ndmin=2, comments=None, usecols=kept, quotechar='"')
    except ValueError as error:
        raise ValueError(
            f"{path} must have the same number of numeric columns in every row: {error}."
        ) from error
    if names and len(names) != values.shape[1]:
        raise ValueError(f"{path} names {len(names)} columns, but its rows have {values.shape[1]}.")
    if len(names) > 1 and check_index(str(path), names[0], values[:, 0]):
        names, values = names[1:], values[:, 1:]
    scores = {name.removeprefix(_SCORE): i for i, name in enumerate(names) if name.startswith(_SCORE)}
    rest = [i for i in range(values.shape[1]) if i not in scores.values()]
    samples, columns = values[:, rest], [names[i] for i in rest] if names else []
    shape = tuple(int(last) + 1 for last in re.findall(r"_(\d{1,9})", columns[-1] if columns else ""))
    if len(shape) > 1 and math.prod(shape) == len(rest) and columns == coordinate_names(shape):
        samples = samples.reshape(len(samples), *shape)
    return columns, samples, {name: values[:, i] for name, i in scores.items()}


def load_npy(path: Path) -> Any:
    """Read the array of numbers in an npy file."""
    _require_memory(path, path.stat().st_size)
    with _name_file_in_errors(path):
        # a header that claims more than the file has cannot be mapped
        array = np.array(np.lib.format.open_memmap(path, mode="r"))
    _require_numbers(path, "its array", array)
    return array


def save_npy(path: Path, array: Any) -> None:
    """Write an array atomically."""
    with checkpoint.atomic(path) as partial, partial.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def load_npz(path: Path, choose: Callable[[Collection[str]], Iterable[str]]) -> dict[str, Any]:
    """Read arrays of numbers, and the text `metadata`, of an npz file by name.

    Args:
        path: The file.
        choose: Selects the names to read from those in the file.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an archive of arrays, or is damaged; rename a single array to .npy.")
    with _name_file_in_errors(path), np.load(path, allow_pickle=False) as archive:
        chosen = list(choose(archive.files))
        _require_memory(path, sum(archive.zip.getinfo(f"{name}.npy").file_size for name in chosen))
        arrays = {name: archive[name] for name in chosen}
        for name in chosen:
            if name != _METADATA:
                _require_numbers(path, name, arrays[name])
    return arrays


def _to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Convert to NumPy arrays, with scores as `score_NAME`; bfloat16, which NumPy lacks, becomes float32."""
    return {
        _swap_prefix(name, _PREFIXES): (value.float() if value.dtype == torch.bfloat16 else value)
        .detach().cpu().numpy()
        for name, value in tensors.items()
    }  # fmt: skip


def _swap_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    """Replace the prefix of a name, if it has one of these."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _save_csv(path: str | os.PathLike[str], result: Result) -> None:
    """Write a table with all digits."""
    columns = [
        [format(value, ".9g") for value in values.tolist()]
        if getattr(values, "dtype", None) == np.float32
        else values
        for values in to_columns(result).values()
    ]
    with checkpoint.atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(to_columns(result))
        table.writerows(zip(*columns, strict=True))


def _load_npz(path: Path) -> _Parts:
    def choose(names: Collection[str]) -> list[str]:
        known = ("samples", _METADATA, *OPTIONAL, *_VERDICT)
        return [name for name in names if name in known or name.startswith(tuple(_PREFIXES.values()))]

    found = load_npz(path, choose)
    text = found.pop(_METADATA, None)
    back = {column: prefix for prefix, column in _PREFIXES.items()}
    tensors = {
        _swap_prefix(name, back): torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        for name, array in found.items()
    }
    if text is None:  # written by another program
        scores = [name.removeprefix(SCORE) for name in tensors if name.startswith(SCORE)]
        return tensors, {"format": FORMAT, "scores": scores}
    try:
        header = json.loads(text.item())
        if not isinstance(header, dict):
            raise TypeError(f"got {type(header).__name__}, not an object")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its metadata must be JSON ({error}).") from error
    return tensors, header


def _restore_verdict(path: Path, tensors: Mapping[str, Tensor], facts: Any) -> Verdict | None:
    """The verdict with these facts; raise one of `DAMAGE` if its tensors do not fit."""
    if facts is None:
        return None
    _check_shapes(path, tensors, (*_VERDICT, *(P_VALUE + name for name in facts["scores"])))
    size, held_out = facts["reference_size"], facts["held_out"]
    if type(size) is not int or size < 1 or type(held_out) is not bool:
        raise ValueError(f"reference_size={size!r}, held_out={held_out!r}")
    return Verdict._from_rows(tensors, facts)


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


def _check_shapes(path: Path, tensors: Mapping[str, Tensor], names: Collection[str]) -> None:
    """Raise if one of these tensors does not have the dtype and shape that belong to the samples."""
    shape = tuple(tensors["samples"].shape)
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"{path} must hold samples of shape (n, *shape), got {shape}.")
    n, d = shape[0], math.prod(shape[1:])
    shapes = {"samples": shape, "variance": shape, "covariance": (n, d, d), "profile": (n, "steps")}
    for name in (name for name in names if name in tensors):
        value = tensors[name]
        form = (n, *value.shape[1:]) if name.startswith("observed") else shapes.get(name, (n,))
        fits = value.ndim == len(form) and all(
            expected in ("steps", size) for size, expected in zip(value.shape, form, strict=True)
        )
        if not fits or value.is_floating_point() == (name in _INTEGERS):
            label = f"score {name.removeprefix(SCORE)!r}" if name.startswith(SCORE) else name
            kind = "int64" if name in _INTEGERS else "floating point"
            raise ValueError(
                f"{path} has {label} as {value.dtype} of shape {tuple(value.shape)}; with samples of shape "
                f"{shape} it must be {kind} of shape ({', '.join(map(str, form))})."
            )


def check_index(what: str, name: str, column: Any) -> bool:
    """Whether a first column only numbers the rows, with a warning; raise if it may be data.

    Args:
        what: The table, for messages.
        name: The name of the column.
        column: Its values, (n,).
    """
    first = name.strip().lower()
    if first not in ("", "index", "unnamed: 0"):
        return False
    numbered = [str(value).removesuffix(".0") for value in column] == [str(i) for i in range(len(column))]
    if first == "index" and not numbered:
        return False
    advice = "write the file without it: df.to_csv(path, index=False)"
    if not numbered:
        raise ValueError(
            f"{what}: the first column ({name!r}) looks like an index of rows; {advice}. "
            "If it is data, give it a name."
        )
    warn(
        f"{what}: the first column ({name!r}) numbers the rows, 0 to {len(column) - 1}, and is dropped; "
        f"{advice}.",
        UserWarning,
    )
    return True


def _require_memory(path: Path, size: int) -> None:
    if size > memory.free_memory(torch.device("cpu")):
        raise ValueError(f"{path} unpacks to {size / 1e9:.3g} GB, more than the free memory.")


def _require_numbers(path: Path, name: str, array: Any) -> None:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(f"{path} must hold numbers in {name}, got an array of {array.dtype}.")


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Convert errors of a parser to a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        if str(path) in str(error) and isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether all cells of a row are numbers. Such a row does not name the columns."""
    try:
        np.array(cells, dtype=float)
    except ValueError:
        return False
    return True
