"""Networks and data in the forms that users have: modules, pipelines, pairs; arrays, data sets, loaders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from ..core.conditions import Cond
from ..core.memory import MEMORY_FRACTION, free_memory
from ..core.progress import warn
from ..core.validation import require_samples, require_tensor
from ..diffusion.schedules import Schedule
from ..integrations.diffusers import from_diffusers
from ..integrations.diffusers_networks import NETWORKS, Network, network_of
from ..model import Model
from ..network.denoiser import Denoiser
from .tables import name_sources, to_condition

MIN_VALUES = 16  # per sample, to tell from its signs how it is scaled
OUT_OF_RANGE = 3.0  # times the range of the training data: samples that go beyond look scaled differently
LOADED = 256  # samples of a data set per batch
ITEMS = ("image", "images", "pixel_values", "input")  # keys of samples in dicts
_FORMS = (
    "a torch module called as net(x, t, **cond), a flare.Denoiser, a flare.Model, a diffusers pipeline, or a "
    "pair (model, scheduler)"
)


def open_model(net: Any, schedule: Any = None, prediction: str | None = None) -> Model:
    """Make a `Model` of a network in any supported form.

    Args:
        net: A module, a `Denoiser`, a `Model`, a diffusers pipeline or its directory, or a pair (model,
            scheduler) or (network, schedule).
        schedule: The noise levels of a module or a `Denoiser`, or a scheduler of diffusers.
        prediction: What a module predicts; "epsilon" by default.
    """
    if isinstance(net, tuple) and len(net) == 2 and isinstance(net[1], Schedule) and schedule is None:
        net, schedule = net
    if isinstance(net, nn.Module) and hasattr(schedule, "set_timesteps"):
        net, schedule = (net, schedule), None
    if isinstance(net, (nn.Module, Denoiser)):
        if not isinstance(schedule, Schedule):
            got = "None" if schedule is None else type(schedule).__name__
            raise TypeError(
                f"schedule must be the noise levels that the network was trained on, got {got}; give for "
                "instance schedule=flare.schedules.cosine(1000), flare.schedules.from_betas(betas) for betas "
                "of your own, or a scheduler of diffusers."
            )
        if isinstance(net, nn.Module) and type(net).__name__ in NETWORKS and hasattr(net, "config"):
            net = Network(net, prediction or "epsilon")
        return Model(net, schedule, prediction)
    is_pair = isinstance(net, tuple) and len(net) == 2
    if not is_pair and not isinstance(net, (Model, str, os.PathLike)) and network_of(net) is None:
        raise TypeError(f"net must be {_FORMS}, got {type(net).__name__}.")
    model = net if isinstance(net, Model) else from_diffusers(net)
    given = {"schedule": schedule, "prediction": prediction}
    if extra := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{extra[0]} comes with the model; leave {extra[0]}= out.")
    return model


def collect_samples(
    what: str, data: Any, dtype: torch.dtype = torch.float32, sources: Mapping[str, str] | None = None
) -> tuple[Tensor, list[str], dict[str, Tensor]]:
    """Read samples (n, *shape) into memory, on the CPU; also returns remarks for the user, and conditions.

    Args:
        what: The name of the argument, for messages.
        data: An array, a tensor, a `Dataset` or a `DataLoader`. Of tuples, the first element is the sample.
        dtype: The dtype of the samples.
        sources: Where tuples or dicts have conditions, by keyword of the network.
    """
    if isinstance(data, (Tensor, np.ndarray)):
        if sources:
            raise ValueError(
                f"cond names {', '.join(sources.values())}, but {what} is an array; give its values, as in "
                f"cond={{{next(iter(sources))!r}: labels}}."
            )
        return require_samples(what, data).detach().to("cpu", dtype), [], {}
    if not isinstance(data, (DataLoader, Dataset)):
        raise TypeError(
            f"{what} must be a tensor, an array, a table, a Dataset or a DataLoader, got "
            f"{type(data).__name__}; convert a list of numbers with torch.as_tensor, and read other files "
            "than csv and parquet first, as with np.load."
        )
    remarks: list[str] = []
    batches: list[Tensor] = []
    found: list[dict[str, Tensor]] = []
    for batch in _iterate(what, data):
        found.append(_take_conditions(what, batch, sources or {}))
        if isinstance(batch, Mapping):
            batch = next((batch[key] for key in ITEMS if key in batch), batch)
        if isinstance(batch, (tuple, list)) and len(batch):
            if len(batch) > 1 and not remarks and not sources:
                remarks = [f"{what} yields tuples: the first element is the sample, the others are not used"]
            batch = batch[0]
        if not isinstance(batch, Tensor):
            raise TypeError(
                f"{what} must yield tensors, or tuples whose first element is the sample, got "
                f"{type(batch).__name__}; give a Dataset that returns tensors."
            )
        batches.append(require_samples(what, batch).detach().to("cpu", dtype))
        if len(batches) == 1:
            _check_memory(what, data, batches[0])
        elif batches[-1].shape[1:] != batches[0].shape[1:]:
            shapes = [tuple(batches[k].shape[1:]) for k in (0, -1)]
            raise ValueError(f"{what} must have samples of one shape, got {shapes[0]} and {shapes[1]}.")
    if not batches:
        raise ValueError(f"{what} is empty; give at least 1 sample.")
    return torch.cat(batches), remarks, {name: torch.cat([each[name] for each in found]) for name in found[0]}


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


def check_existing(model: Model, existing: Any, shape: tuple[int, ...], limits: Sequence[float]) -> Tensor:
    """Return samples to be scored as a tensor in the precision of the scores; images of latents are encoded.

    Args:
        model: The network.
        existing: A tensor or an array.
        shape: The shape of a training sample.
        limits: The smallest and the largest number of the training data; a warning says if the samples go
            far beyond.
    """
    existing = require_tensor("existing", existing)
    expected = f"(n, {', '.join(map(str, shape))})"
    if not existing.is_floating_point():
        raise TypeError(
            f"existing must be floating-point samples {expected}, scaled as the training data, got "
            f"{existing.dtype}; for values of 0 to 255 use x / 127.5 - 1."
        )
    if model.codec is not None and existing.ndim > 1 and tuple(existing.shape[1:]) != shape:
        existing = model.encode(existing)
    if existing.ndim < 2 or tuple(existing.shape[1:]) != shape or not len(existing):
        hint = "; for a single sample use existing[None]" if tuple(existing.shape) == shape else ""
        raise ValueError(
            f"existing must have shape {expected}, with samples like the training data, got "
            f"{tuple(existing.shape)}{hint}."
        )
    x: Tensor = existing.detach().to(torch.promote_types(model.denoiser.dtype, torch.float32))
    warn_of_range("the samples lie", x, "the training data", *limits)
    return x


def warn_of_range(said: str, x: Tensor, data: str, low: float, high: float) -> None:
    """Warn if samples (n, *shape) are not scaled as training data in [low, high].

    Args:
        said: The beginning of the warning, such as "the samples lie".
        x: The samples.
        data: The training data, in words.
        low: Its smallest value.
        high: Its largest value.
    """
    beyond = (x - (low + high) / 2).abs().flatten(1).amax(1) > OUT_OF_RANGE * (high - low) / 2
    # such as images in [0, 1] where those of the training are in [−1, 1]
    no_sign = low < -high / 4 < 0 and x[0].numel() >= MIN_VALUES and bool((x >= 0).all())
    if beyond.double().mean() > 0.5 or no_sign:
        warn(
            f"{said} in [{float(x.min()):.3g}, {float(x.max()):.3g}], {data} in [{low:.3g}, {high:.3g}]: are "
            "they scaled as in training?",
            UserWarning,
        )


def _take_conditions(what: str, batch: Any, sources: Mapping[str, str]) -> dict[str, Tensor]:
    """The conditions of a batch: values of a dict, or elements of a tuple, the second one unless numbered."""
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


def _iterate(what: str, data: Any) -> Iterator[Any]:
    """The batches of a loader or a data set."""
    try:
        loader: Iterable[Any] = data
        if not isinstance(data, DataLoader):
            loader = DataLoader(cast("Dataset[Any]", data), batch_size=LOADED)
        yield from loader
    except TypeError as error:  # of the default collate function
        raise TypeError(
            f"{what} cannot be read as tensors: {error}. Give a Dataset that returns tensors of one shape, "
            "scaled as in training."
        ) from error


def _check_memory(what: str, data: Any, first: Tensor) -> None:
    """Refuse a data set that does not fit into the memory, after its first batch."""
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, IterableDataset) or not hasattr(source, "__len__"):
        return
    needed = len(source) * first[0].numel() * first.element_size()
    if needed > MEMORY_FRACTION * free_memory(torch.device("cpu")):
        raise ValueError(
            f"{what} takes {needed / 1e9:.3g} GB, more than half of the free memory; give a random part of "
            "it, such as torch.utils.data.Subset(dataset, torch.randperm(len(dataset))[:50_000])."
        )
