"""Reading data and samples, and writing them: npy, npz, safetensors, csv, parquet; never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..results import Result

READABLE = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
NAMES = ("samples", "data", "x")  # what an array is looked for under, in this order


def read_array(path: Path) -> Tensor:
    """The samples in a file, (n, *shape) float32, checked."""
    import torch

    from ..checks import samples

    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    try:
        value = {
            ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".csv": _csv, ".parquet": _parquet,
        }[path.suffix](path)  # fmt: skip
        tensor = torch.as_tensor(value)
    except ValueError:
        raise
    except Exception as error:  # the parsers of five formats raise what they like at a broken file
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {tensor.dtype}.")
    return samples(f"the array in {path}", tensor.to(torch.float32))


def _npy(path: Path) -> Any:
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError(f"{path} is an archive of arrays; call it .npz.")
        file.seek(0)
        return _numeric(path, _array(path, file, path.stat().st_size))


def _npz(path: Path) -> Any:
    import zipfile

    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an archive of arrays; call it .npy if it is a single one.")
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        info = _one(path, members)
        with archive.open(info) as file:
            return _numeric(path, _array(path, file, info.file_size))


def _array(path: Path, file: Any, size: int) -> Any:
    """An array of NumPy's format without pickle, if its header is true of a file of `size` bytes."""
    import math

    import numpy as np
    import torch

    from ..batching import free

    if size > free(torch.device("cpu")):
        raise ValueError(f"{path} unpacks to {size / 1e9:.3g} GB, more than there is memory for.")
    try:
        start = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if start not in readers:
            raise ValueError(f"it is of version {start}, and not of {', '.join(map(str, readers))}")
        shape, in_columns, dtype = readers[start](file)
        needed = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind not in "fiu":
            raise ValueError(f"it must hold numbers, got an array of {dtype}")
        if min(shape, default=1) < 0 or needed > size:
            raise ValueError(f"its header says {shape} of {dtype}, but the file has {size:,} bytes")
        # the size is checked by now: no header makes memory that the file does not fill
        return np.frombuffer(file.read(needed), dtype).reshape(shape, order="F" if in_columns else "C")
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error


def _safetensors(path: Path) -> Any:
    from .. import checkpoint

    return _one(path, checkpoint.load(path)[0])


def _csv(path: Path) -> Any:
    import numpy as np

    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as csv: {error}.") from error
    first = lines[0].split(",") if lines else []
    named = any(not _is_number(cell) for cell in first)
    # what `write_result` adds to the samples is not read as part of them
    columns = [i for i, name in enumerate(first) if not (named and name.startswith("score_"))]
    rows = lines[int(named) :]
    if not rows or not columns:
        raise ValueError(f"{path} has no rows of numbers.")
    try:
        return np.loadtxt(rows, delimiter=",", ndmin=2, dtype=np.float32, usecols=columns, comments=None)
    except ValueError as error:
        raise ValueError(
            f"{path} must have the same number of numeric columns in every row: {error}."
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> Any:
    import numpy as np

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: pip install pyarrow.") from error
    try:
        frame = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}.") from error
    return np.stack([_numeric(path, np.asarray(column)) for column in frame.columns], axis=1)


def _one(path: Path, arrays: dict[str, Any]) -> Any:
    """The array that is meant: by its usual name, or the only one."""
    for name in NAMES:
        if name in arrays:
            return arrays[name]
    if len(arrays) != 1:
        raise ValueError(
            f"{path} must hold one array, or one called {' or '.join(NAMES)}; it holds: "
            f"{', '.join(sorted(arrays)) or 'none'}."
        )
    return next(iter(arrays.values()))


def _numeric(path: Path, array: Any) -> Any:
    import numpy as np

    if array.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers, got an array of {array.dtype}.")
    return array.astype(np.float32)


def write_result(path: Path, result: Result, **about: Any) -> None:
    """Write a result by the ending of the path: safetensors (all of it), npz, or csv (samples, scores)."""
    import numpy as np

    from ..checkpoint import atomic

    if path.suffix == ".safetensors":
        result.save(path, **about)
        return
    numbers = {f"score_{name}": value.double().cpu().numpy() for name, value in result.scores.items()}
    samples = result.samples.float().cpu().numpy()
    if path.suffix == ".npz":
        extra = {} if result.variance is None else {"variance": result.variance.float().cpu().numpy()}
        with atomic(path) as partial, partial.open("wb") as file:
            arrays: dict[str, Any] = {"samples": samples, **numbers, **extra}
            np.savez(file, **arrays)
    elif path.suffix == ".csv":
        flat = samples.reshape(len(samples), -1)
        header = ",".join([f"x{i}" for i in range(flat.shape[1])] + list(numbers))
        table = np.column_stack([flat, *numbers.values()])
        with atomic(path) as partial:
            np.savetxt(partial, table, delimiter=",", header=header, comments="", fmt="%.9g")
    else:
        raise ValueError(f"{path} must end in .safetensors, .npz or .csv.")
