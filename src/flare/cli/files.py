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
    except (OSError, EOFError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    tensor = torch.as_tensor(value)
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {tensor.dtype}.")
    return samples(f"the array in {path}", tensor.to(torch.float32))


def _npy(path: Path) -> Any:
    loaded = _load(path)
    if isinstance(loaded, dict):
        raise ValueError(f"{path} is an archive of arrays; call it .npz.")
    return _numeric(path, loaded)


def _npz(path: Path) -> Any:
    loaded = _load(path)
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} is not an archive of arrays; call it .npy if it is a single one.")
    return _numeric(path, _one(path, loaded))


def _load(path: Path) -> Any:
    import zipfile

    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if hasattr(loaded, "files") else loaded
    except (ValueError, zipfile.BadZipFile) as error:
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
