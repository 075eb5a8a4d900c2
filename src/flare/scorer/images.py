"""Images from files: a folder of images as a data set, in [−1, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

IMAGES = (".png", ".jpg", ".jpeg")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels


class ImageFolder(Dataset[Any]):
    """The images of a folder in the order of their names, (channels, height, width) in [−1, 1].

    If the folder contains only subfolders, one per class, an item is a pair of an image and its class.

    Args:
        folder: The folder. Files that are not images are ignored.
        shape: The shape of an image, if it is known; otherwise the shape of the first image.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...] | None = None) -> None:
        paths, self.classes = list_folder(folder)
        self.paths = [path for path in paths if path.suffix.lower() in IMAGES]
        if not self.paths:
            raise ValueError(f"{folder} has no images ({', '.join(IMAGES)}).")
        self._mode = MODES.get(shape[0]) if shape is not None and len(shape) == 3 else None
        self._size: tuple[int, ...] | None = None
        first = self._read(0)
        self._mode, self._size = self._mode or MODES[len(first)], tuple(first.shape[1:])

    def __getitem__(self, index: int) -> Any:
        image = self._read(index)
        return (image, self.classes[self.paths[index].parent.name]) if self.classes else image

    def _read(self, index: int) -> Tensor:
        try:
            return to_tensor(read_image(self.paths[index], self._mode, self._size))
        except ValueError as error:
            raise ValueError(f"{self.paths[index]} {error}; remove it, or convert all images.") from error

    def __len__(self) -> int:
        return len(self.paths)


def list_folder(folder: Path) -> tuple[list[Path], dict[str, int]]:
    """The files of a folder, by name, without hidden ones; or the files of its subfolders, and their classes.

    The class of a subfolder is its number, or its place in the order of the names.
    """
    paths = _list_visible(folder)
    if not paths or not all(path.is_dir() for path in paths):
        return paths, {}
    numbered = all(path.name.isdecimal() for path in paths)
    classes = {path.name: int(path.name) if numbered else place for place, path in enumerate(paths)}
    return [path for inner in paths for path in _list_visible(inner)], classes


def _list_visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def is_image(value: Any) -> bool:
    """Whether a value is an image of Pillow."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def to_tensor(pixels: Any) -> Tensor:
    """Pixels (height, width) or (height, width, channels), 0 to 255, as (channels, height, width) in ±1."""
    x = torch.from_numpy(np.array(pixels)).float() / 127.5 - 1
    return x[None] if x.ndim == 2 else x.movedim(-1, 0)


def read_image(path: Path, mode: str | None = None, size: Sequence[int] | None = None) -> Any:
    """The pixels of an image, (height, width) or (height, width, channels) uint8; raise if unusable.

    Args:
        path: The file.
        mode: The Pillow mode to convert the image to; by default the mode of the image, or RGB.
        size: The height and the width that it must have.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise RuntimeError("reading images needs Pillow: pip install pillow.") from error
    if path.is_dir():
        raise ValueError("is a folder")
    if path.suffix.lower() not in IMAGES:
        raise ValueError(f"is not an image ({', '.join(IMAGES)})")
    if not path.is_file():  # opening a pipe would wait forever
        raise ValueError("is not a regular file")
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise ValueError(f"is animated, with {frames} frames")
            if size is not None and image.size != (size[1], size[0]):
                got = f"{image.size[0]} × {image.size[1]}"
                raise ValueError(f"is {got} pixels, but the model's images are {size[1]} × {size[0]}")
            return to_pixels(image, mode)
    except ValueError:
        raise
    except Exception as error:  # on a broken file the decoders may raise anything
        raise ValueError(f"cannot be read: {error}") from error


def to_pixels(image: Any, mode: str | None = None) -> Any:
    """The pixels of a Pillow image. Palettes, bitmaps and other modes become RGB."""
    if image.mode.startswith(("I", "F")):
        raise ValueError("has more than 8 bits per channel")
    return np.asarray(image.convert(mode or (image.mode if image.mode in MODES.values() else "RGB")))
