"""Samples that a command reads: files of arrays, tables and folders of images; never pickle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.validation import require_samples
from ..results import result_files
from ..scorer.inputs import align_columns
from ..storage import checkpoint
from .flags import READABLE
from .output import escape_controls

NAMES = ("samples", "data", "x")  # the usual names of an array of samples, in order of preference
IMAGES = (".png", ".jpg", ".jpeg")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels
SHOWN = 20  # problems that are named one by one


def read_array(path: Path) -> Tensor:
    """Read the samples in a file, (n, *shape) float32, and check them."""
    return read_table(path)[0]


def read_samples(path: Path, shape: tuple[int, ...] | None, columns: Sequence[str]) -> Tensor:
    """Read samples of a given shape, None for any; the columns of a table get the order of `columns`."""
    array, names = read_table(path)
    if shape is not None and tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {shape}.")
    return align_columns(str(path), array, names, columns)


def read_table(path: Path) -> tuple[Tensor, list[str]]:
    """Read the samples in a file as `read_array` does, and the names of their columns if it has them."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    columns: list[str] = []
    try:
        value = _READERS[path.suffix](path)
        if isinstance(value, tuple):
            value, columns = value
        if "int" in str(value.dtype):
            raise ValueError(
                f"{path} must hold floating-point numbers, got {value.dtype}: scale them as in training "
                "before you save them (for instance images from 0..255 by x / 127.5 - 1)."
            )
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(_to_float32(path, value))
    except ValueError:
        raise
    except Exception as error:  # on a broken file the parsers may raise anything
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {tensor.dtype}.")
    return require_samples(f"the array in {path}", tensor.to(torch.float32)), columns


@dataclass(frozen=True)
class Samples:
    """Samples with their names.

    Attributes:
        values: (n, *shape); images are scaled as the training data.
        names: File names of images, otherwise row numbers.
        skipped: Reasons why files of a folder were not read, by file name.
    """

    values: Tensor
    names: list[str]
    skipped: dict[str, str] = field(default_factory=dict)


def read_folder(folder: Path, shape: tuple[int, ...], limits: Sequence[float]) -> Samples:
    """Read all images of a folder, without its subfolders and hidden files; unreadable files are skipped.

    Args:
        folder: The folder.
        shape: Shape of the model's samples, (channels, height, width) or (height, width).
        limits: The smallest and the largest value of the training data, which tell how pixels are scaled.
    """
    channels = 1 if len(shape) == 2 else shape[0]
    if len(shape) not in (2, 3) or channels not in MODES:
        raise ValueError(
            f"{folder} is a folder of images, but the model's samples have shape {shape}: give a file of "
            "arrays."
        )
    images: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        try:
            images[path.name] = _read_image(path, MODES[channels], shape[-2:])
        except ValueError as error:  # noqa: PERF203 - unreadable files are skipped
            skipped[escape_controls(path.name)] = str(error)
    if not images:
        found = "; ".join(list_problems(skipped)) or "it is empty"
        raise ValueError(f"{folder} has no image that can be scored ({found}).")
    divisor, shift, _ = choose_scale(limits)
    stacked = torch.from_numpy(np.stack(list(images.values()))).float() / divisor + shift
    ordered = stacked.reshape(len(images), *shape[-2:], channels).movedim(-1, 1)
    return Samples(ordered.reshape(len(images), *shape), list(images), skipped)


def choose_scale(limits: Sequence[float]) -> tuple[float, float, str]:
    """Divisor and shift that scale pixels of 0 to 255 as the training data, and its range in words."""
    low, high = limits
    if low < 0:
        return 127.5, -1.0, "[−1, 1]"
    return (255.0, 0.0, "[0, 1]") if high <= 1 else (1.0, 0.0, "[0, 255]")


def list_problems(skipped: dict[str, str]) -> list[str]:
    """One line per file that was not read, at most 20, and how many more there are."""
    lines = [f"{name}: {problem}" for name, problem in skipped.items()]
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more} more"]


def _read_npz(path: Path) -> Any:
    (array,) = result_files.load_npz(path, lambda names: [_choose(path, names)]).values()
    return array


def _read_safetensors(path: Path) -> Any:
    tensors, _ = checkpoint.load(path)
    return tensors[_choose(path, tensors)]


def _read_csv(path: Path) -> tuple[Any, list[str]]:
    table = result_files.load_table(path)  # leaves out the scores of a result
    return table.samples, [name.strip() for name in table.columns]


def _read_parquet(path: Path) -> tuple[Any, list[str]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: pip install pyarrow.") from error
    frame = pyarrow.parquet.read_table(path)
    values = np.stack([_to_float32(path, np.asarray(column)) for column in frame.columns], axis=1)
    return values, list(frame.column_names)


_READERS: dict[str, Any] = {
    ".npy": result_files.load_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


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
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers, got an array of {array.dtype}.")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are refused as such
        return array.astype(np.float32)


def _read_image(path: Path, mode: str, size: Sequence[int]) -> Any:
    """The pixels of an image, (height, width) or (height, width, channels) uint8; raise if unusable."""
    try:
        from PIL import Image
    except ImportError as error:
        raise RuntimeError("reading images needs Pillow: pip install pillow.") from error
    if path.is_dir():
        raise ValueError("is a folder")
    if path.suffix.lower() not in IMAGES:
        raise ValueError(f"is not an image ({', '.join(IMAGES)})")
    if path.name != escape_controls(path.name):
        raise ValueError("has a name with control characters or bytes that are not UTF-8; rename it")
    if not path.is_file():  # opening a pipe would wait forever
        raise ValueError("is not a regular file")
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise ValueError(f"is animated, with {frames} frames")
            if image.mode.startswith(("I", "F")):
                raise ValueError("has more than 8 bits per channel")
            if image.size != (size[1], size[0]):
                got = f"{image.size[0]} × {image.size[1]}"
                raise ValueError(f"is {got} pixels, the model's images are {size[1]} × {size[0]}")
            return np.asarray(image.convert(mode))
    except ValueError:
        raise
    except Exception as error:  # on a broken file the decoders may raise anything
        raise ValueError(f"cannot be read: {error}") from error
