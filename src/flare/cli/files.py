"""Read data and samples: npy, npz, safetensors, csv, parquet; never pickle."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


READABLE = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
NAMES = ("samples", "data", "x")  # the usual names of an array of samples, in order of preference


def read_array(path: Path) -> Tensor:
    """Read the samples in a file, (n, *shape) float32, and check them."""
    return read_table(path)[0]


def read_table(path: Path) -> tuple[Tensor, list[str]]:
    """Read the samples in a file as `read_array` does, and the names of their columns if it has them."""
    import torch

    from ..core.validation import require_samples
    from ..results.arrays import load_npy

    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    try:
        read = {
            ".npy": load_npy,
            ".npz": _read_npz,
            ".safetensors": _read_safetensors,
            ".csv": _read_csv,
            ".parquet": _read_parquet,
        }[path.suffix]
        columns: list[str] = []
        value = read(path)
        if isinstance(value, tuple):
            value, columns = value
        if "int" in str(value.dtype):
            raise ValueError(
                f"{path} must hold floating-point numbers, got {value.dtype}: scale them as in training "
                "before you save them (for instance images from 0..255 by x / 127.5 - 1)."
            )
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(_to_float32(path, value))
    except ValueError:
        raise
    except Exception as error:  # on a broken file the parsers may raise anything
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {tensor.dtype}.")
    return require_samples(f"the array in {path}", tensor.to(torch.float32)), columns


def _read_npz(path: Path) -> Any:
    from ..results import arrays

    (array,) = arrays.load_npz(path, lambda names: [_choose(path, names)]).values()
    return array


def _read_safetensors(path: Path) -> Any:
    from ..storage import checkpoint

    tensors, _ = checkpoint.load(path)
    return tensors[_choose(path, tensors)]


def _read_csv(path: Path) -> tuple[Any, list[str]]:
    from ..results import formats

    table = formats.load_table(path)  # leaves out the scores of a result
    return table.samples, [name.strip() for name in table.columns]


def _read_parquet(path: Path) -> tuple[Any, list[str]]:
    import numpy as np

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: pip install pyarrow.") from error
    try:
        frame = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}.") from error
    values = np.stack([_to_float32(path, np.asarray(column)) for column in frame.columns], axis=1)
    return values, list(frame.column_names)


def _choose(path: Path, names: Collection[str]) -> str:
    """Choose an array by its usual name, or the only one."""
    for name in NAMES:
        if name in names:
            return name
    if len(names) != 1:
        raise ValueError(
            f"{path} must hold one array, or one called {' or '.join(NAMES)}; it holds: "
            f"{', '.join(sorted(names)) or 'none'}."
        )
    return next(iter(names))


def _to_float32(path: Path, array: Any) -> Any:
    import numpy as np

    if array.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers, got an array of {array.dtype}.")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are refused as such
        return array.astype(np.float32)
