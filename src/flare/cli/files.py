"""Reading data and samples: npy, npz, safetensors, csv, parquet; never pickle."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


READABLE = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
NAMES = ("samples", "data", "x")  # what an array is looked for under, in this order


def read_array(path: Path) -> Tensor:
    """The samples in a file, (n, *shape) float32, checked."""
    import torch

    from ..core.validation import require_samples
    from ..results.arrays import load_npy

    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    try:
        value = {
            ".npy": load_npy, ".npz": _npz, ".safetensors": _safetensors, ".csv": _csv, ".parquet": _parquet,
        }[path.suffix](path)  # fmt: skip
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(_numeric(path, value))
    except ValueError:
        raise
    except Exception as error:  # the parsers of five formats raise what they like at a broken file
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {tensor.dtype}.")
    return require_samples(f"the array in {path}", tensor.to(torch.float32))


def _npz(path: Path) -> Any:
    from ..results import arrays

    (array,) = arrays.load_npz(path, lambda names: [_choose(path, names)]).values()
    return array


def _safetensors(path: Path) -> Any:
    from ..storage import checkpoint

    tensors, _ = checkpoint.load(path)
    return tensors[_choose(path, tensors)]


def _csv(path: Path) -> Any:
    from ..results import arrays, formats

    samples, _ = formats.split_columns(*arrays.load_csv(path))  # the scores of a result are no data
    return samples


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


def _choose(path: Path, names: Collection[str]) -> str:
    """The array that is meant: by its usual name, or the only one."""
    for name in NAMES:
        if name in names:
            return name
    if len(names) != 1:
        raise ValueError(
            f"{path} must hold one array, or one called {' or '.join(NAMES)}; it holds: "
            f"{', '.join(sorted(names)) or 'none'}."
        )
    return next(iter(names))


def _numeric(path: Path, array: Any) -> Any:
    import numpy as np

    if array.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers, got an array of {array.dtype}.")
    with np.errstate(over="ignore"):  # what is too large for float32 is refused as infinite
        return array.astype(np.float32)
