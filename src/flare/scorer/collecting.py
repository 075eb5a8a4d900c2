"""Data in the forms that users have: arrays, memory-mapped files, data sets, loaders, folders of images.

A scorer needs about ten thousand samples. If data does not fit into memory, random rows are read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    default_collate,
)

from ..core.conditions import Cond, check_conditions, take_rows
from ..core.memory import MEMORY_FRACTION, free_memory
from ..core.noise_streams import SPLIT_STREAM, mix_seed
from ..core.validation import require_samples, require_tensor
from .images import ImageFolder, is_image, to_pixels, to_tensor
from .tables import name_sources, to_condition

LOADED = 256  # samples of a data set per batch
MOST = 50_000  # samples that are read of data that does not fit into memory
ITEMS = ("image", "images", "pixel_values", "input")  # keys of samples in dicts


class Collected(NamedTuple):
    """Data in memory.

    Attributes:
        samples: (n, *shape), on the CPU.
        rows: Their rows in the user's data, (n,).
        cond: Their conditions.
        remarks: Remarks for the user.
    """

    samples: Tensor
    rows: Tensor
    cond: dict[str, Any]
    remarks: list[str]


def collect_samples(
    what: str,
    data: Any,
    dtype: torch.dtype = torch.float32,
    cond: Cond | str | None = None,
    seed: int = 0,
    shape: tuple[int, ...] | None = None,
) -> Collected:
    """Read samples into memory.

    Args:
        what: The name of the argument, for messages.
        data: An array, a tensor, a `Dataset` or what is indexed like one, a `DataLoader`, or the path of a
            folder of images. In tuples, the first element is the sample.
        dtype: The dtype of the samples.
        cond: Conditions with one row per sample, or where tuples or dicts have them.
        seed: Random seed for the rows to read if not all fit into memory.
        shape: The shape of a sample, if it is known; images of a folder get its number of channels.
    """
    sources = name_sources(cond) or {}
    if isinstance(data, (Tensor, np.ndarray)):
        if sources:
            raise ValueError(
                f"cond names {', '.join(sources.values())}, but {what} is an array; give its values, as in "
                f"cond={{{next(iter(sources))!r}: labels}}."
            )
        return _read_array(what, data, dtype, cond, seed)
    if isinstance(data, (str, os.PathLike)) and not Path(data).is_file():
        data = ImageFolder(Path(data), shape)
    if not isinstance(data, (DataLoader, Dataset)) and not _is_indexed(data):
        raise TypeError(
            f"{what} must be a tensor, an array, a table, a Dataset, a DataLoader or a folder of images, got "
            f"{type(data).__name__}; convert a list of numbers with torch.as_tensor, and read other files "
            "than csv and parquet first, as with np.load."
        )
    return _read_batches(what, data, dtype, cond, sources, seed)


def check_order(what: str, data: Any, cond: Cond | None, named: str) -> None:
    """Raise if conditions are given for data whose rows come in an unknown order, such as a shuffled one.

    Args:
        what: The name of the data, for messages.
        data: The data, in the forms of `collect_samples`.
        cond: Its conditions, with one row per sample.
        named: Their name, for messages.
    """
    if isinstance(cond, Mapping) and cond and name_sources(cond) is None and not _is_ordered(data):
        raise ValueError(
            f"{named}= has one row per sample, but the order of {what} is not known: it is shuffled, sampled "
            "or streamed, so samples would get the conditions of others. Instead of a loader, give "
            "loader.dataset, or a tensor with its rows in the order of the conditions."
        )


def _is_ordered(data: Any) -> bool:
    """Whether data is read from the first row to the last."""
    if not isinstance(data, DataLoader):
        return not isinstance(data, IterableDataset)
    batches = data.batch_sampler
    rows = batches.sampler if type(batches) is BatchSampler else data.sampler if batches is None else None
    return type(rows) is SequentialSampler and getattr(data, "in_order", True)


def _is_indexed(data: Any) -> bool:
    """Whether data is read by index, like data sets of the packages datasets, h5py and zarr."""
    known = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return known and not isinstance(data, (Sequence, Mapping, set))


def _read_array(what: str, data: Any, dtype: torch.dtype, cond: Any, seed: int) -> Collected:
    """Read an array, or random rows of a memory-mapped one that is too large."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and never written to
        x = require_tensor(what, data)
    n, remarks = len(x) if x.ndim else 0, []
    rows = torch.arange(n)
    if n and (isinstance(data, np.memmap) or x.dtype != dtype or x.device.type != "cpu"):
        count = _count_fitting(x[0].numel() * torch.finfo(dtype).bits // 8, n)
        if count < n:
            rows, remarks = _draw_rows(n, count, seed), [_say_part(what, n, count)]
            x = x[rows.to(x.device)]
    x = require_samples(what, x).detach().to("cpu", dtype)
    return Collected(x, rows, take_rows(check_conditions(cond, n), rows), remarks)


def _read_batches(
    what: str, data: Any, dtype: torch.dtype, cond: Any, sources: Mapping[str, str], seed: int
) -> Collected:
    """Read a data set or a loader; if it is too large, random samples, or the first ones of a stream."""
    loader = data
    if not isinstance(data, DataLoader):
        collate = None if isinstance(data, IterableDataset) else partial(_collate, sources)
        loader = DataLoader(data, batch_size=LOADED, collate_fn=collate)
    is_stream = isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__")
    total = None if is_stream else len(loader.dataset)
    rows, most, remarks = None, None, []
    if total:
        first = _to_samples(what, next(_iterate(what, loader)), dtype)
        fit = _count_fitting(first[0].numel() * first.element_size(), total)
        if fit < total:
            most = fit
            remarks.append(_say_part(what, total, most))
            if _is_ordered(loader):  # otherwise its first samples are random, too
                rows = _draw_rows(total, most, seed)
                size = loader.batch_size if loader.batch_sampler is None else loader.batch_size or LOADED
                loader = DataLoader(
                    Subset(loader.dataset, rows.tolist()), size, collate_fn=loader.collate_fn,
                    num_workers=loader.num_workers,
                )  # fmt: skip
    batches: list[Tensor] = []
    found: list[dict[str, Tensor]] = []
    count = 0
    for batch in _iterate(what, loader):
        if not sources and isinstance(batch, (tuple, list)) and len(batch) > 1 and not batches:
            remarks.append(f"{what} yields tuples: the first element is the sample, the others are not used")
        found.append(_take_conditions(what, batch, sources))
        batches.append(_to_samples(what, batch, dtype))
        if batches[-1].shape[1:] != batches[0].shape[1:]:
            shapes = [tuple(batches[k].shape[1:]) for k in (0, -1)]
            raise ValueError(f"{what} must have samples of one shape, got {shapes[0]} and {shapes[1]}.")
        count += len(batches[-1])
        if is_stream and most is None:
            most = _count_fitting(batches[0][0].numel() * batches[0].element_size())
        if most is not None and count >= most:
            if is_stream:
                remarks.append(f"{what} is long: only its first {count:,} samples are used, to save memory")
            break
    if not batches:
        raise ValueError(f"{what} is empty; give at least 1 sample.")
    own = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    if not own:
        own = check_conditions(cond, count if rows is None else cast("int", total))
        own = own if rows is None else take_rows(own, rows)
    return Collected(_join(batches, count), torch.arange(count) if rows is None else rows, own, remarks)


def _to_samples(what: str, batch: Any, dtype: torch.dtype) -> Tensor:
    """The samples of a batch."""
    if isinstance(batch, Mapping):
        if not (keys := [key for key in ITEMS if key in batch]):
            raise TypeError(
                f"{what} yields dicts with {', '.join(map(str, batch))}, and FLARE cannot tell which one "
                f"holds the samples; name it {', '.join(ITEMS[:-1])} or {ITEMS[-1]}."
            )
        batch = batch[keys[0]]
    if isinstance(batch, (tuple, list)) and len(batch):
        batch = batch[0]
    if not isinstance(batch, Tensor):
        raise TypeError(
            f"{what} must yield tensors, or tuples whose first element is the sample, got "
            f"{type(batch).__name__}; give a Dataset that returns tensors."
        )
    return require_samples(what, batch).detach().to("cpu", dtype)


def _join(batches: list[Tensor], count: int) -> Tensor:
    """Join batches into one tensor, and free each one after its copy: memory never holds samples twice."""
    whole = batches[0].new_empty(count, *batches[0].shape[1:])
    batches.reverse()
    while batches:
        part = batches.pop()
        whole[-count:][: len(part)] = part
        count -= len(part)
    return whole


def _count_fitting(size: int, n: int | None = None) -> int:
    """How many of n samples of `size` bytes to read: all if these take at most half of the free memory."""
    fit = max(1, int(MEMORY_FRACTION * free_memory(torch.device("cpu")) // size))
    if n is None:
        return fit
    return n if n <= fit else min(fit, MOST)


def _draw_rows(n: int, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    return torch.randperm(n, generator=generator)[:count].sort().values


def _say_part(what: str, n: int, count: int) -> str:
    return (
        f"{what} has {n:,} samples, which take more than half of the free memory: {count:,} of them are "
        "used, drawn at random"
    )


def _collate(sources: Mapping[str, str], items: list[Any]) -> Any:
    """A batch of items: the needed entries of dicts, and images as tensors."""

    def convert(item: Any) -> Any:
        if isinstance(item, Mapping):
            samples = [key for key in ITEMS if key in item][:1]
            needed = [*samples, *sources.values()] if samples and {*sources.values()} <= {*item} else item
            return {key: convert(item[key]) for key in needed}
        if isinstance(item, (tuple, list)):
            return type(item)(map(convert, item))
        return to_tensor(to_pixels(item)) if is_image(item) else item

    return default_collate([convert(item) for item in items])


def _take_conditions(what: str, batch: Any, sources: Mapping[str, str]) -> dict[str, Tensor]:
    """The conditions of a batch: values of a dict, or elements of a tuple, by default the second one."""
    found = {}
    for keyword, source in sources.items():
        is_dict = isinstance(batch, Mapping)
        key: Any = source if is_dict else int(source) if source.isdecimal() else 1
        known = list(batch) if is_dict else range(len(batch) if isinstance(batch, (tuple, list)) else 1)
        if key not in known:
            got = (
                f"dicts with {', '.join(map(str, known))}" if is_dict else f"{len(known)} tensor(s) per batch"
            )
            raise ValueError(
                f"{what} must yield the condition {keyword} at {key!r}, got {got}; name its place, as in "
                f"cond={{{keyword!r}: 'label'}} for dicts or cond={{{keyword!r}: '2'}} for tuples."
            )
        found[keyword] = to_condition(keyword, batch[key])
    return found


def _iterate(what: str, loader: Any) -> Iterator[Any]:
    """The batches of a loader."""
    try:
        yield from loader
    except TypeError as error:  # of the default collate function
        raise TypeError(
            f"{what} cannot be read as tensors: {error}. Give a Dataset that returns tensors of one shape, "
            "scaled as in training."
        ) from error
