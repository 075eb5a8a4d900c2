"""Samples that a command reads: files of arrays, tables and folders of images; never pickle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.distributed import is_main
from ..core.validation import require_samples
from ..results import result_files
from ..scorer.inputs import align_columns, warn_of_range
from ..scorer.scorer import Scorer
from ..storage import checkpoint
from .flags import READABLE
from .output import escape_controls, remark

NAMES = ("samples", "data", "x")  # the usual names of an array of samples, in order of preference
IMAGES = (".png", ".jpg", ".jpeg")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels
SHOWN = 20  # problems that are named one by one


def read_array(path: Path, shape: tuple[int, ...] | None = None, columns: Sequence[str] = ()) -> Tensor:
    """Read the samples in a file, (n, *shape) float32, and check them.

    Args:
        path: The file.
        shape: Expected shape of a sample; None for any.
        columns: Names of the columns of a table, in the order that they get.
    """
    array, names = read_table(path)
    if shape is not None and tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {shape}.")
    return align_columns(str(path), array, names, columns)


def read_table(path: Path) -> tuple[Tensor, list[str]]:
    """Read the samples in a file, and the names of their columns if it has them."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    try:
        value, columns = _read_values(path)
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


class Samples(NamedTuple):
    """Samples with their names.

    Attributes:
        values: (n, *shape); images are scaled as the training data.
        names: File names of images, otherwise row numbers.
        skipped: Reasons why files of a folder were not read, by file name.
    """

    values: Tensor
    names: list[str]
    skipped: dict[str, str]


def read_existing(source: Path, scorer: Scorer, quiet: bool) -> Samples:
    """Read the samples of a file or a folder; warn once if they are not scaled as the training data."""
    limits = scorer.about["range"]
    if not source.is_dir():
        columns = scorer.about.get("columns") or ()
        existing = read_array(source, None if scorer.model.codec else scorer.shape, columns)
        if is_main() and not scorer.model.codec:
            warn_of_range("the samples lie", existing, "the training data", *limits)
        return Samples(existing, [str(row) for row in range(len(existing))], {})
    found = _read_folder(source, scorer.shape, limits)
    if is_main():
        for problem in _list_problems(found.skipped):
            remark("[yellow]not scored:[/yellow]", problem)
    if is_main() and not quiet:
        said = f"{len(found.names):,} images of {source}, scaled to {_choose_scale(limits)[2]}"
        remark("", f"{said} as the training data.")
    return found


def _read_folder(folder: Path, shape: tuple[int, ...], limits: Sequence[float]) -> Samples:
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
        found = "; ".join(_list_problems(skipped)) or "it is empty"
        raise ValueError(f"{folder} has no image that can be scored ({found}).")
    divisor, shift, _ = _choose_scale(limits)
    stacked = torch.from_numpy(np.stack(list(images.values()))).float() / divisor + shift
    ordered = stacked.reshape(len(images), *shape[-2:], channels).movedim(-1, 1)
    return Samples(ordered.reshape(len(images), *shape), list(images), skipped)


def _choose_scale(limits: Sequence[float]) -> tuple[float, float, str]:
    """Divisor and shift that scale pixels of 0 to 255 as the training data, and its range in words."""
    low, high = limits
    if low < 0:
        return 127.5, -1.0, "[−1, 1]"
    return (255.0, 0.0, "[0, 1]") if high <= 1 else (1.0, 0.0, "[0, 255]")


def _list_problems(skipped: dict[str, str]) -> list[str]:
    """One line per file that was not read, at most 20, and how many more there are."""
    lines = [f"{name}: {problem}" for name, problem in skipped.items()]
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more} more"]


def _read_values(path: Path) -> tuple[Any, list[str]]:
    """The array or tensor in a file, and the names of its columns if it has them."""
    if path.suffix == ".npy":
        return result_files.load_npy(path), []
    if path.suffix == ".npz":
        (array,) = result_files.load_npz(path, lambda names: [_choose(path, names)]).values()
        return array, []
    if path.suffix == ".safetensors":
        tensors, _ = checkpoint.load(path)
        return tensors[_choose(path, tensors)], []
    if path.suffix == ".csv":
        table = result_files.load_table(path)  # leaves out the scores of a result
        return table.samples, [name.strip() for name in table.columns]
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: pip install pyarrow.") from error
    frame = pyarrow.parquet.read_table(path)
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
