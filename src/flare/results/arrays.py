"""Arrays in files of others: npy, npz and csv, without pickle, and checked before memory is taken."""

from __future__ import annotations

import csv
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import batch_size

NUMBERS, TEXT = "fiu", "U"  # kinds of NumPy's dtypes


def load_npy(path: Path) -> Any:
    """The array of numbers in an npy file."""
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError(f"{path} is an archive of arrays; call it .npz.")
        file.seek(0)
        return _read_array(path, file, path.stat().st_size, NUMBERS)


def load_npz(
    path: Path, choose: Callable[[Collection[str]], Iterable[str]], kinds: str = NUMBERS
) -> dict[str, Any]:
    """The arrays of an npz file by name.

    Args:
        path: the file.
        choose: given the names of all arrays in the file, those to read.
        kinds: the kinds of dtypes that are allowed; anything else in a chosen array is an error.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an archive of arrays; call it .npy if it is a single one.")
    with _named_errors(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays, total = {}, 0
        for name in choose(members):
            total += members[name].file_size
            with archive.open(members[name]) as file:
                arrays[name] = _read_array(path, file, members[name].file_size, kinds, total)
    return arrays


def load_csv(path: Path) -> tuple[list[str], Any]:
    """The names of the columns (empty without a header) and the numbers (n, columns), float64.

    A column that numbers the rows, as pandas writes it, is left out with a warning.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as csv: {error}.") from error
    with _named_errors(path):
        first = next(csv.reader(lines[:1]), [])
    names = first if any(not _is_number(cell) for cell in first) else []
    if not names and len(first) > 1 and first == [str(i) for i in range(len(first))]:
        names = first
        warnings.warn(f"{path}: the first row, 0 to {len(first) - 1}, is read as names.", stacklevel=2)
    rows = lines[int(bool(names)) :]
    if not rows or not first:
        raise ValueError(f"{path} has no rows of numbers.")
    try:
        values = np.loadtxt(rows, delimiter=",", ndmin=2, dtype=np.float64, comments=None)
    except ValueError as error:
        raise ValueError(
            f"{path} must have the same number of numeric columns in every row: {error}."
        ) from error
    if names and len(names) != values.shape[1]:
        raise ValueError(f"{path} names {len(names)} columns, but its rows have {values.shape[1]}.")
    return _drop_index(path, names, values)


def _drop_index(path: Path, names: list[str], values: Any) -> tuple[list[str], Any]:
    """Leave a first column out that only numbers the rows; one that may be data is refused."""
    first = names[0].strip().lower() if names else None
    if first not in ("", "index", "unnamed: 0") or len(names) == 1:
        return names, values
    advice = "write the file without it: df.to_csv(path, index=False)"
    if np.array_equal(values[:, 0], np.arange(len(values))):
        warnings.warn(
            f"{path}: the first column ({names[0]!r}) numbers the rows, 0 to {len(values) - 1}, and is left "
            f"out; {advice}.",
            stacklevel=3,
        )
        return names[1:], values[:, 1:]
    if first == "index":
        return names, values
    raise ValueError(
        f"{path}: the first column ({names[0]!r}) looks like an index of rows; {advice}. "
        "If it is data, give it a name."
    )


def _read_array(path: Path, file: Any, size: int, kinds: str, total: int | None = None) -> Any:
    """An array of NumPy's format, if its header agrees with the `size` bytes of the file."""
    if max(size, total or 0) > batch_size.free_memory(torch.device("cpu")):
        raise ValueError(
            f"{path} unpacks to {max(size, total or 0) / 1e9:.3g} GB, more than there is memory for."
        )
    with _named_errors(path):
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"it is of version {version}, and not of {', '.join(map(str, readers))}")
        shape, in_columns, dtype = readers[version](file)
        needed = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind not in kinds:
            raise ValueError(f"it must hold numbers, got an array of {dtype}")
        if min(shape, default=1) < 0 or needed > size:
            raise ValueError(f"its header says {shape} of {dtype}, but the file has {size:,} bytes")
        # the size is checked by now: no header makes memory that the file does not fill
        return np.frombuffer(file.read(needed), dtype).reshape(shape, order="F" if in_columns else "C")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises into a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        if str(path) in str(error) and isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
