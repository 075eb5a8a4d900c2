"""Folders of images: png and jpg through Pillow, each read for itself, so a bad one costs only itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import escape_controls

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels
SHOWN = 20  # problems that are named one by one


@dataclass(frozen=True)
class Folder:
    """The images of a folder.

    Attributes:
        names: of the files that were read, in order.
        images: (n, *shape), scaled as the training data.
        skipped: why other files were not, by name.
        scaled: how the values were scaled, in words.
    """

    names: list[str]
    images: Tensor
    skipped: dict[str, str]
    scaled: str


def read_folder(folder: Path, shape: tuple[int, ...], limits: Sequence[float]) -> Folder:
    """Read all images of a folder, without its subfolders and hidden files.

    Args:
        folder: the folder.
        shape: of the model's samples, (channels, height, width) or (height, width).
        limits: the smallest and the largest value of the training data, which tell how pixels are scaled.
    """
    import torch

    channels = 1 if len(shape) == 2 else shape[0]
    if len(shape) not in (2, 3) or channels not in MODES:
        raise ValueError(
            f"{folder} is a folder of images, but the model's samples have shape {shape}: give a "
            "file of arrays."
        )
    names, images, skipped = [], [], {}
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        image, problem = _try_image(path, MODES[channels], shape[-2:])
        if image is None:
            skipped[escape_controls(path.name)] = problem
        else:
            names.append(path.name)
            images.append(image)
    if not names:
        found = "; ".join(list_problems(skipped)) or "it is empty"
        raise ValueError(f"{folder} has no image that can be scored ({found}).")
    (divisor, shift), scaled = _choose_scale(limits)
    stacked = torch.from_numpy(_stack(images)).float() / divisor + shift
    ordered = stacked.reshape(len(names), *shape[-2:], channels).movedim(-1, 1)
    return Folder(names, ordered.reshape(len(names), *shape), skipped, scaled)


def list_problems(skipped: dict[str, str]) -> list[str]:
    """One line per file that was not read, at most 20 and how many more there are."""
    lines = [f"{name}: {problem}" for name, problem in skipped.items()]
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more} more"]


def _try_image(path: Path, mode: str, size: Sequence[int]) -> tuple[Any, str]:
    """The pixels of an image; None and the problem if it is not usable."""
    try:
        return _read_image(path, mode, size), ""
    except ValueError as error:
        return None, str(error)


def _read_image(path: Path, mode: str, size: Sequence[int]) -> Any:
    """The pixels of an image, (height, width) or (height, width, channels) uint8; raise if unusable."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise RuntimeError("reading images needs Pillow: pip install pillow.") from error
    if path.is_dir():
        raise ValueError("is a folder")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"is not an image ({', '.join(SUFFIXES)})")
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


def _choose_scale(limits: Sequence[float]) -> tuple[tuple[float, float], str]:
    """Divisor and shift that bring pixels of 0 to 255 to the range of the training data."""
    low, high = limits
    if low < 0:
        return (127.5, -1.0), "[−1, 1]"
    return ((255.0, 0.0), "[0, 1]") if high <= 1 else ((1.0, 0.0), "[0, 255]")


def _stack(images: Sequence[Any]) -> Any:
    import numpy as np

    return np.stack(images)
