"""Samples that a command reads: files of arrays, tables and folders of images; never pickle."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.conditions import Cond, check_conditions, take_rows
from ..core.distributed import is_main
from ..core.validation import require_samples
from ..results import result_files
from ..scorer import tables
from ..scorer.images import MODES, list_folder, read_image
from ..scorer.inputs import warn_of_range
from ..scorer.scorer import Scorer
from ..scorer.tables import FILES, DataTable, name_sources, open_table, shorten, to_condition
from ..storage import checkpoint
from .app import escape_controls, remark
from .flags import READABLE

NAMES = ("samples", "data", "x")  # the usual names of an array of samples, in order of preference
SHOWN = 20  # problems that are named one by one


def read_array(path: Path, shape: tuple[int, ...] | None = None) -> Tensor:
    """Read the samples in a file, (n, *shape) float32, and check them; None stands for any shape."""
    array = read_data(path)
    array = array.to_samples()[1].float() if isinstance(array, DataTable) else array
    if shape is not None:
        _check_shape(path, array, shape)
    return array


def read_data(path: Path) -> Tensor | DataTable:
    """Read the samples in a file; a table if its columns have names."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix not in READABLE:
        raise ValueError(f"{path} must end in one of {', '.join(READABLE)}.")
    try:
        value = open_table(str(path), path) if path.suffix in FILES else _read_values(path)
        if isinstance(value, DataTable):
            return value
        if "int" in str(value.dtype):
            raise ValueError(
                f"{path} must hold floating-point numbers, got {value.dtype}: scale them as in training "
                "before you save them (for instance images from 0..255 by x / 127.5 - 1)."
            )
        if not isinstance(value, Tensor):
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
                value = torch.as_tensor(value.astype(np.float32))
    except ValueError:
        raise
    except Exception as error:  # on a broken file the parsers may raise anything
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}.") from error
    if value.dtype == torch.bool or value.is_complex():
        raise ValueError(f"{path} must hold real numbers, got {value.dtype}.")
    return require_samples(f"the array in {path}", value.to(torch.float32))


def read_training(path: Path | None) -> Tensor | DataTable | Path | None:
    """Read training data or held-out data; a folder is read by `flare.fit`."""
    return path if path is None or path.is_dir() else read_data(path)


def read_scaling(path: str) -> tuple[Any, Any]:
    """Read the mean and the standard deviation of the columns of a table from an npz file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}.")
    found = result_files.load_npz(
        Path(path), lambda names: [each for each in ("mean", "std") if each in names]
    )
    if len(found) < 2:
        raise ValueError(
            f"{path} must hold mean and std, one number per column: np.savez(path, mean=mean, std=std)."
        )
    return found["mean"], found["std"]


class Samples(NamedTuple):
    """Samples with their names.

    Attributes:
        values: (n, *shape); images are scaled as the training data.
        names: File names of images, otherwise row numbers.
        skipped: Reasons why files of a folder were not read, by file name.
        cond: Conditions, with one row per sample.
        table: The file, if it is a table with named columns.
    """

    values: Tensor
    names: list[str]
    skipped: dict[str, str]
    cond: Cond
    table: Path | None = None


def read_existing(source: Path, scorer: Scorer, cond: str | None, quiet: bool) -> Samples:
    """Read the samples of a file or a folder; warn once if they are not scaled as the training data.

    Args:
        source: The file or folder; it may have one subfolder per class.
        scorer: The scorer.
        cond: Value of --cond.
        quiet: Whether to make no remarks.
    """
    limits, needed = scorer.about["range"], scorer.about["conditions"]
    given: Cond | None = None if cond is None else read_conditions(cond, needed)
    if not source.is_dir():
        existing, table = read_data(source), None
        if isinstance(existing, DataTable):
            table, (existing, given) = source, tables.read_existing(existing, scorer.about, given)
        elif name_sources(given):
            raise ValueError(f"--cond {cond} names a column, but {source} has no columns with names.")
        if not scorer.model.codec:
            _check_shape(source, existing, scorer.shape)
        if is_main() and not scorer.model.codec:
            warn_of_range("the samples lie", existing, "the training data", *limits)
        given = check_conditions(given, len(existing))
        return Samples(existing, [str(row) for row in range(len(existing))], {}, given, table)
    found = _read_folder(source, scorer.shape, limits)
    if given is not None:
        found = found._replace(cond=check_conditions(given, len(found.names)))
    elif needed:
        found = found._replace(cond={needed[0]: _label_folders(source, found.names, quiet)})
    if is_main():
        for problem in _list_problems(found.skipped):
            remark("[yellow]not scored:[/yellow]", problem)
    if is_main() and not quiet:
        said = f"{len(found.names):,} images of {source}, scaled to {_choose_scale(limits)[2]}"
        remark("", f"{said} as the training data.")
    return found


def _read_folder(folder: Path, shape: tuple[int, ...], limits: Sequence[float]) -> Samples:
    """Read all images of a folder, without hidden files; unreadable files are skipped.

    If the folder contains only subfolders, such as one per class, their images are read.

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
    for path in list_folder(folder)[0]:
        name = path.relative_to(folder).as_posix()
        try:
            if path.name != escape_controls(path.name):
                raise ValueError("has a name with control characters or bytes that are not UTF-8; rename it")
            images[name] = read_image(path, MODES[channels], shape[-2:])
        except ValueError as error:  # unreadable files are skipped
            skipped[escape_controls(name)] = str(error)
    if not images:
        found = "; ".join(_list_problems(skipped)) or "it is empty"
        raise ValueError(f"{folder} has no image that can be scored ({found}).")
    divisor, shift, _ = _choose_scale(limits)
    stacked = torch.from_numpy(np.stack(list(images.values()))).float() / divisor + shift
    ordered = stacked.reshape(len(images), *shape[-2:], channels).movedim(-1, 1)
    return Samples(ordered.reshape(len(images), *shape), list(images), skipped, {})


def _check_shape(path: Path, array: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}; the model's are {shape}.")


def _label_folders(folder: Path, names: Sequence[str], quiet: bool) -> Tensor:
    """Classes of images in one subfolder per class: its number, or its place in the order of the names."""
    _, numbers = list_folder(folder)
    if not numbers:
        raise ValueError(
            f"the scorer needs the class of every image: give {folder} one subfolder per class, or --cond "
            "labels.npy with one row per image, in the order of their names."
        )
    if is_main() and not quiet:
        remark(
            "", f"classes by subfolder: {shorten(f'{kind} is {number}' for kind, number in numbers.items())}."
        )
    return torch.tensor([numbers[name.partition("/")[0]] for name in names])


def read_conditions(text: str, keywords: Sequence[str]) -> dict[str, Any]:
    """The values of --cond by keyword of the network: a tensor of a file, or the name of a column.

    Args:
        text: A file or a column, or KEYWORD=FILE, KEYWORD=COLUMN.
        keywords: Keywords that the network takes; without one in the text, the first.
    """
    keyword, sign, value = text.partition("=")
    if not sign:
        keyword, value = keywords[0] if keywords else "", text
    if keyword not in keywords:
        known = f"takes {', '.join(keywords)}" if keywords else "takes no conditions"
        raise ValueError(f"--cond {text} cannot be used: the network {known}.")
    if Path(value).suffix != ".npy":
        return {keyword: value}
    if not Path(value).is_file():
        raise FileNotFoundError(f"no file at {value}.")
    return {keyword: to_condition(keyword, result_files.load_npy(Path(value)))}


def read_training_conditions(module: Any, texts: Mapping[str, str | None]) -> dict[str, Any]:
    """The conditions of `flare.fit` by argument, for a network called as net(x, t, **cond)."""
    return {
        name: read_conditions(text, _find_keywords(module, text))
        for name, text in texts.items()
        if text is not None
    }


def read_null_condition(text: str | None, module: Any) -> dict[str, float] | None:
    """The value of --null-cond by keyword of the network."""
    if text is None:
        return None
    ((keyword, value),) = read_conditions(text, _find_keywords(module, text)).items()
    try:
        return {keyword: float(value) if "." in value else int(value)}
    except (TypeError, ValueError):
        raise ValueError(f"--null-cond must be a number, or KEYWORD=NUMBER, got {text}.") from None


def read_drawn_conditions(text: str, scorer: Scorer, n: int) -> Cond:
    """The values of --cond for n samples that are drawn."""
    found = read_conditions(text, scorer.about["conditions"])
    if name_sources(found):
        raise ValueError(f"--cond {text} must be an .npy file with one row per sample that is drawn.")
    return check_conditions(found, n)


def take_part(cond: Cond | None, first: int, count: int) -> Cond | None:
    """The conditions of some samples."""
    return take_rows(cond, slice(first, first + count)) if cond else None


def _find_keywords(module: Any, text: str) -> list[str]:
    """The conditions that a network called as net(x, t, **cond) takes, class_labels first, for --cond."""
    parameters = list(inspect.signature(module.forward).parameters.values())[2:]
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if any(p.kind == p.VAR_KEYWORD for p in parameters):  # it may take any
        names.append(text.partition("=")[0] if "=" in text else "class_labels")
    return sorted(names, key=lambda name: name != "class_labels")


def _choose_scale(limits: Sequence[float]) -> tuple[float, float, str]:
    """Divisor and shift that scale pixels of 0 to 255 like the training data, and its range in words."""
    low, high = limits
    if low < 0:
        return 127.5, -1.0, "[−1, 1]"
    return (255.0, 0.0, "[0, 1]") if high <= 1 else (1.0, 0.0, "[0, 255]")


def _list_problems(skipped: dict[str, str]) -> list[str]:
    """One line per file that was not read, at most 20, and how many more there are."""
    lines = [f"{name}: {problem}" for name, problem in skipped.items()]
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more} more"]


def _read_values(path: Path) -> Any:
    """The array or tensor in a file without named columns."""
    if path.suffix == ".npy":
        return result_files.load_npy(path)
    if path.suffix == ".npz":
        (array,) = result_files.load_npz(path, lambda names: [_choose(path, names)]).values()
        return array
    tensors, _ = checkpoint.load(path)
    return tensors[_choose(path, tensors)]


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
