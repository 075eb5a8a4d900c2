"""Files of results and of arrays: safetensors, npz, npy and csv.

safetensors and npz hold everything; csv holds samples, scores, regions and verdict. Every format stores
tensors by name, with scores as `score.NAME`, and a header of JSON values. Nothing is pickled, and a file that
does not fit into the free memory is refused.
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import memory
from ..core.progress import warn
from ..storage import checkpoint
from .verdict import DAMAGE, NOT_SCORED, P_VALUE, SCORE, Verdict, restore_reference

if TYPE_CHECKING:
    from .result import Result

FORMAT = 1
SUFFIXES = (".safetensors", ".npz", ".csv")
OPTIONAL = ("variance", "covariance", "profile", "observed", "observed_variance", "regions")
REFERENCE = "reference."  # prefix of the scores of real data among the tensors
#: prefixes of names in memory, and in npz and csv
_PREFIXES = {prefix: prefix[:-1] + "_" for prefix in (SCORE, P_VALUE, REFERENCE)}
_SCORE, _P_VALUE = _PREFIXES[SCORE], _PREFIXES[P_VALUE]
_VERDICT = ("p_value", "z", "reason", "copy", "nearest")  # tensors of a verdict without a prefix
_INTEGERS = ("regions", "reason", "copy", "nearest")  # all other tensors are floating point
#: the columns of a verdict in a table with one row per sample, besides the p-values of single scores
_COLUMNS = ("z", "nearest", "reference_size", "held_out", "p_value", "verdict", "reason", "copy")
_OLD_COLUMNS = ("p_value", "verdict", "reason", "copy")  # all that versions before 0.4 wrote
_REGION = "region"  # the column of the regions
_METADATA = "metadata"  # array of an npz file that holds the header as JSON
OWN = "flare_"  # prefix of own columns where the columns of a table have the same names
_WIDE = re.compile(r"\d(\.?\d){14}")  # a number with more digits than a csv file has for float32
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
        left_out = [name for name in OPTIONAL[:-1] if name in tensors]
        left_out += [name for name in ("about", "reference") if header.get(name)]
        if left_out:
            warn(
                f"{path}: {', '.join(left_out)} cannot be written as csv. Write .safetensors or .npz to keep "
                "them.",
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
    read = {".safetensors": checkpoint.load, ".npz": _load_npz, ".csv": _load_csv}[suffix]
    tensors, header = read(path)
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
    """NumPy arrays by name, as in an npz file, and in words what that stores as numbers."""
    arrays = _to_arrays(pack(result)[0])
    if (verdict := result.verdict) is not None:
        arrays |= {"reason": np.array(verdict.reason, str), "verdict": np.array(verdict.labels(), str)}
        arrays |= {} if verdict.copies is None else {"copy": verdict.copies.numpy()}
    return arrays


def to_columns(result: Result, coordinates: bool = True, named: bool = True) -> dict[str, Any]:
    """Columns of a table with one row per sample, from which samples, scores and verdict can be restored.

    Args:
        result: The result; samples of a table are in its units.
        coordinates: Whether to include the samples.
        named: Whether these columns have the names of the table, if it has names.
    """
    found, verdict = to_arrays(result), result.verdict
    samples = found["samples"]
    if scaling := result.about.get("scaling"):
        samples = (samples * np.array(scaling["std"]) + np.array(scaling["mean"])).astype(samples.dtype)
    flat = samples.reshape(len(samples), -1).T if coordinates else ()
    names = result.about.get("columns") or ()
    if not named or len({*names}) != math.prod(samples.shape[1:]):
        names = coordinate_names(samples.shape[1:])
    first = dict(zip(names, flat, strict=coordinates))
    columns = {name: values for name, values in found.items() if name.startswith(_SCORE)}
    if result.regions is not None:
        columns[_REGION] = found["regions"]
    if verdict is not None:
        found["reference_size"] = np.full(len(result), verdict.reference_size)
        found["held_out"] = np.full(len(result), verdict.held_out)
        columns |= {name: values for name, values in found.items() if name.startswith(_P_VALUE)}
        columns |= {name: found[name] for name in _COLUMNS if name in found}
    return first | {OWN + name if name in first else name: values for name, values in columns.items()}


def coordinate_names(shape: tuple[int, ...]) -> list[str]:
    """x0, x1, … for flat samples; x_0_0, x_0_1, … for samples with several axes."""
    if len(shape) == 1:
        return [f"x{i}" for i in range(shape[0])]
    return ["x" + "".join(f"_{i}" for i in index) for index in product(*map(range, shape))]


class Table(NamedTuple):
    """Samples and scores of a csv file.

    Attributes:
        columns: Names of the coordinates; empty without a header.
        samples: Numbers (n, *shape); column names encode the shape.
        scores: Scores by name.
    """

    columns: list[str]
    samples: Any
    scores: dict[str, Any]


def load_table(path: Path) -> Table:
    """Read the samples and the scores of a csv file, float64, without regions and verdict.

    A first column that only numbers the rows, as pandas writes it, is dropped with a warning.
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
    skipped = _find_verdict(names)
    kept = [i for i, name in enumerate(names) if name not in skipped] if skipped else None
    try:
        values = np.loadtxt(rows, delimiter=",", ndmin=2, comments=None, usecols=kept, quotechar='"')
    except ValueError as error:
        raise ValueError(
            f"{path} must have the same number of numeric columns in every row: {error}."
        ) from error
    names = [name for name in names if name not in skipped]
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
    return Table(columns, samples, {name: values[:, i] for name, i in scores.items()})


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
        raise ValueError(f"{path} is not an archive of arrays; rename it to .npy if it is a single array.")
    with _name_file_in_errors(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = list(choose(members))
        _require_memory(path, sum(members[name].file_size for name in chosen))
        arrays = {}
        for name in chosen:
            with archive.open(members[name]) as file:
                _check_header_size(file, members[name].file_size)
            with archive.open(members[name]) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
            if name != _METADATA:
                _require_numbers(path, name, arrays[name])
    return arrays


def _check_header_size(file: Any, size: int) -> None:
    """Raise if the header of an array claims more bytes than its file has, before NumPy allocates them."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its version is {version}; expected {' or '.join(map(str, readers))}")
    shape, _, dtype = readers[version](file)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header says {shape} of {dtype}, but the file has {size:,} bytes")


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
    """Write a table with all digits, by which `_load_csv` tells float64 from float32."""
    exact = (*_COLUMNS, _REGION)
    taken = [
        name
        for name in result.about.get("columns") or ()
        if name in exact or name.startswith((_SCORE, _P_VALUE))
    ]
    if taken:
        said = f"{', '.join(taken)} would not differ from columns of the verdict"
        warn(f"{path}: {said}, so the coordinates are called x0, x1, ….", UserWarning)
    columns = to_columns(result, named=not taken)
    texts = [
        values.tolist()
        if name in exact or name.startswith(_P_VALUE)
        else [format(value, ".9g" if values.dtype.itemsize <= 4 else "#.17g") for value in values.tolist()]
        for name, values in columns.items()
    ]
    with checkpoint.atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(zip(*texts, strict=True))


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


def _load_csv(path: Path) -> _Parts:
    columns, samples, scores = load_table(path)
    cells = _load_cells(path) if columns or scores else {}

    def to_tensor(values: Any, names: Collection[str]) -> Tensor:
        wide = any(_WIDE.search(cell) for name in names for cell in cells[name])
        return torch.from_numpy(values) if wide else torch.from_numpy(values).float()

    tensors = {"samples": to_tensor(samples, columns)}
    tensors |= {SCORE + name: to_tensor(score, [_SCORE + name]) for name, score in scores.items()}
    try:
        rows, header = _read_verdict_cells(cells)
    except DAMAGE as error:
        raise ValueError(
            f"{path} is damaged: its verdict or reference, or its column {_REGION}, cannot be read "
            f"({error!r}). Write it again."
        ) from error
    if not header and "p_value" in _find_verdict(cells):
        warn(
            f"{path} has p-values, but not the rest of a verdict, as if written by version 0.4: they are "
            "left out. Score the samples again.",
            UserWarning,
        )
    if columns and columns != coordinate_names(samples.shape[1:]):
        header["about"] = {"columns": columns}
    return tensors | rows, {"format": FORMAT, "scores": list(scores), **header}


def _find_verdict(names: Collection[str]) -> list[str]:
    """The columns of regions and verdict in a table; other data may use some of these names, too."""
    if {*_COLUMNS}.difference(("nearest", "copy")) <= {*names}:
        return [name for name in names if name in (*_COLUMNS, _REGION) or name.startswith(_P_VALUE)]
    is_result = any(name.startswith(_SCORE) for name in names)
    return [name for name in names if is_result and name in (*_OLD_COLUMNS, _REGION)]


def _load_cells(path: Path) -> dict[str, Sequence[str]]:
    """Read the columns of a csv file with a header as text, by name."""
    with _name_file_in_errors(path), path.open(encoding="utf-8-sig", newline="") as file:
        names, *rows = (row for row in csv.reader(file) if any(map(str.strip, row)))
        return dict(zip(names, zip(*rows, strict=True), strict=True))


def _read_verdict_cells(cells: Mapping[str, Sequence[str]]) -> _Parts:
    """The tensors and the header of regions and verdict from the text of their columns."""
    found = _find_verdict(cells)
    scores = [name.removeprefix(_P_VALUE) for name in found if name.startswith(_P_VALUE)]
    flags = {"true": True, "false": False}  # spreadsheets write TRUE
    parsers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(("p_value", "z", *(_P_VALUE + name for name in scores)), float),
        "reason": [*scores, NOT_SCORED].index,
        "copy": lambda cell: flags[cell.lower()],
        "nearest": int,
        _REGION: int,
    }
    complete = "z" in found  # an earlier version wrote only some columns of the verdict
    rows = {
        _swap_prefix(name, {_P_VALUE: P_VALUE}): torch.from_numpy(
            np.array([*map(parsers[name], cells[name])])
        )
        for name in found
        if name in parsers and (complete or name == _REGION)
    }
    if _REGION in rows:
        rows["regions"] = rows.pop(_REGION)
    if not complete:
        return rows, {}
    references = set(zip(cells["reference_size"], cells["held_out"], strict=True))
    if len(references) > 1:
        raise ValueError("its rows were compared with different real data")
    ((size, held_out),) = references
    facts = {"scores": scores, "reference_size": int(size), "held_out": flags[held_out.lower()]}
    return rows, {"verdict": facts}


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
    """Whether all cells of a row are numbers, so that it does not name the columns."""
    try:
        np.array(cells, dtype=float)
    except ValueError:
        return False
    return True
