"""How finished samples are encoded: the encoder of their features, and its noise levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core import SHARED_LEVELS
from ..core.conditions import Cond, take_rows, to_device
from ..core.progress import warn
from ..diffusion.schedules import Level, Schedule
from ..model import Model
from ..network.denoiser import times
from ..network.layers import count_products, find_layers
from ..posteriors import Posterior, Root
from ..scores import SCORES, Encoder

Levels = float | Sequence[float]


def make_encoder(
    model: Model,
    posterior: Posterior | None,
    layers: Mapping[str, int],
    seed: int,
    pairs: int = 1,
    levels: Levels = SHARED_LEVELS,
    names: Sequence[str] | None = None,
) -> Encoder:
    """The encoder of all scores that have a reader, or of the named ones."""
    readers = {
        name: score.reader
        for name, score in SCORES.items()
        if score.reader is not None and (names is None or name in names)
    }
    root = None if posterior is None else Root.of(posterior, seed)
    found = find_levels(model.schedule, levels)
    return Encoder(model.denoiser.wide(), found, readers, seed, pairs, layers, root)


def trace_layers(
    model: Model, x: Tensor, cond: Cond, names: Sequence[str] | None = None, levels: Levels = SHARED_LEVELS
) -> tuple[dict[str, int], float]:
    """The layers to record, and the number of multiplications in one call of the network.

    If there are none, a warning says that samples are scored without activations.
    """
    denoiser = model.denoiser.wide()
    few = x[[0, -1]].to(denoiser.device, denoiser.dtype)
    if torch.equal(few[0], few[1]):
        few = torch.stack([few[0], few[0] + 1])
    own = to_device(take_rows(cond, slice(0, 1)), few.device)
    t = [times(level.time, few[:1]) for level in find_levels(model.schedule, levels)]
    layers = find_layers(denoiser, few, t, own, names)
    if not layers:
        warn(
            f"{denoiser.name} has no convolution or linear layers that depend on x, so samples are scored "
            "without its activations. Name layers to look at with layers=.",
            UserWarning,
        )
    return layers, count_products(denoiser, few[:1], t[0], own)


def find_levels(schedule: Schedule, fractions: Levels) -> list[Level]:
    """Find the levels at some fractions of T, or at a single one."""
    given = [fractions] if isinstance(fractions, (int, float)) else list(fractions)
    if not given or not all(isinstance(fraction, (int, float)) for fraction in given):
        raise ValueError(f"give at least one level as a number, such as 0.1, got {fractions!r}.")
    return [schedule.at_fraction(fraction) for fraction in given]
