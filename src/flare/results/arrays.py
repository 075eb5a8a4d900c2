"""npy, npz and csv files: no pickle, and sizes are checked before memory is allocated."""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.memory import free_memory
from ..core.warn import warn
from ..storage.checkpoint import atomic

NUMBERS, TEXT = "fiu", "U"  # kinds of NumPy dtypes


def load_npy(path: Path) -> Any:
    """Read the array of numbers in an npy file."""
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError(f"{path} is an archive of arrays; rename it to .npz.")
        file.seek(0)
        return _read_array(path, file, path.stat().st_size, NUMBERS)


def save_npy(path: Path, array: Any) -> None:
    """Write an array atomically."""
    with atomic(path) as partial, partial.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def load_npz(
    path: Path, choose: Callable[[Collection[str]], Iterable[str]], kinds: str = NUMBERS
) -> dict[str, Any]:
    """Read arrays of an npz file by name.

    Args:
        path: the file.
        choose: selects the names to read from those in the file.
        kinds: the allowed kinds of NumPy dtypes; others raise an error.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an archive of arrays; rename it to .npy if it is a single array.")
    with _name_file_in_errors(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays, total = {}, 0
        for name in choose(members):
            total += members[name].file_size
            with archive.open(members[name]) as file:
                arrays[name] = _read_array(path, file, members[name].file_size, kinds, total)
    return arrays


def load_csv(
    path: Path, skip: Callable[[Collection[str]], Collection[str]] = lambda names: ()
) -> tuple[list[str], Any]:
    """Read the column names (empty without a header) and the numbers (n, columns), float64.

    A first column that only numbers the rows, as pandas writes it, is dropped with a warning.

    Args:
        path: the file.
        skip: selects the columns to leave out, which may hold text, from all names.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as csv: {error}.") from error
    with _name_file_in_errors(path):
        first = next(csv.reader(lines[:1]), [])
    names = first if any(not _is_number(cell) for cell in first) else []
    if not names and len(first) > 1 and first == [str(i) for i in range(len(first))]:
        names = first
        warn(f"{path}: the first row, 0 to {len(first) - 1}, is read as names.", UserWarning)
    rows = lines[int(bool(names)) :]
    if not rows or not first:
        raise ValueError(f"{path} has no rows of numbers.")
    skipped = skip(names)
    kept = [i for i, name in enumerate(names) if name not in skipped] if skipped else None
    try:
        values = np.loadtxt(
            rows, delimiter=",", ndmin=2, dtype=np.float64, comments=None, usecols=kept, quotechar='"'
        )
    except ValueError as error:
        raise ValueError(
            f"{path} must have the same number of numeric columns in every row: {error}."
        ) from error
    names = names if kept is None else [names[i] for i in kept]
    if names and len(names) != values.shape[1]:
        raise ValueError(f"{path} names {len(names)} columns, but its rows have {values.shape[1]}.")
    return _drop_index(path, names, values)


def load_cells(path: Path) -> dict[str, Sequence[str]]:
    """Read the columns of a csv file with a header as text, by name."""
    with _name_file_in_errors(path), path.open(encoding="utf-8-sig", newline="") as file:
        names, *rows = (row for row in csv.reader(file) if any(map(str.strip, row)))
        return dict(zip(names, zip(*rows, strict=True), strict=True))


def _drop_index(path: Path, names: list[str], values: Any) -> tuple[list[str], Any]:
    """Drop a first column that only numbers the rows; raise if it looks like one, but may be data."""
    first = names[0].strip().lower() if names else None
    if first not in ("", "index", "unnamed: 0") or len(names) == 1:
        return names, values
    advice = "write the file without it: df.to_csv(path, index=False)"
    if np.array_equal(values[:, 0], np.arange(len(values))):
        warn(
            f"{path}: the first column ({names[0]!r}) numbers the rows, 0 to {len(values) - 1}, and is "
            f"dropped; {advice}.",
            UserWarning,
        )
        return names[1:], values[:, 1:]
    if first == "index":
        return names, values
    raise ValueError(
        f"{path}: the first column ({names[0]!r}) looks like an index of rows; {advice}. "
        "If it is data, give it a name."
    )


def _read_array(path: Path, file: Any, size: int, kinds: str, total: int | None = None) -> Any:
    """Read an array in NumPy's format; raise if its header does not match the `size` bytes of the file."""
    if max(size, total or 0) > free_memory(torch.device("cpu")):
        raise ValueError(
            f"{path} unpacks to {max(size, total or 0) / 1e9:.3g} GB, more than the free memory."
        )
    with _name_file_in_errors(path):
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"its version is {version}; expected {' or '.join(map(str, readers))}")
        shape, fortran_order, dtype = readers[version](file)
        needed = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind not in kinds:
            raise ValueError(f"it must hold numbers, got an array of {dtype}")
        if min(shape, default=1) < 0 or needed > size:
            raise ValueError(f"its header says {shape} of {dtype}, but the file has {size:,} bytes")
        # safe to allocate: the file really has this many bytes
        return np.frombuffer(file.read(needed), dtype).reshape(shape, order="F" if fortran_order else "C")


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Convert errors of a parser to a ValueError that names the file."""
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
