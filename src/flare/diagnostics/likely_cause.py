"""Why a network does not fit its data: other assumptions about its training, under which it would.

The errors of the network are computed under every assumption (prediction, time convention, T, schedule, range
of its betas, scale of the data). The one under which they are far smaller is the likely cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..diffusion import schedules
from ..diffusion.parameterizations import Prediction
from .denoising_errors import FRACTIONS, Assumption, LevelError, Task, excess_of, spectrum_of

TOLERATED = 0.1  # excess over the linear denoiser
NOTICED = 0.01  # excess that other betas save, if they save a quarter of it
# values of T that are tried
LEVEL_COUNTS = (10, 20, 50, 100, 200, 250, 300, 400, 500, 600, 800, 1000, 1500, 2000, 4000)


def find_likely_cause(
    task: Task, errors: Mapping[Prediction, Sequence[LevelError]], spectrum: Tensor, excess: float
) -> str | None:
    """Find the assumption under which the network fits far better, as a sentence; None if there is none."""
    own = task.denoiser.prediction
    found = {
        f"The network seems to predict {name}, not {own}: set the prediction to {name}.": excess_of(levels)
        for name, levels in errors.items()
        if name != own
    }
    two: dict[str, float] = {}  # a wrong time and a wrong prediction at once, which is common
    for assumed in _other_times(task, spectrum):
        for name, value in task.excesses(assumed).items():
            if name == own:
                found[assumed.cause] = value
            else:
                two[f"{assumed.cause} It also seems to predict {name}, not {own}."] = value
    for assumed in (*_other_training(task, spectrum), *_other_betas(task, spectrum)):
        found[assumed.cause] = task.excesses(assumed).get(own, math.inf)
    enough = min(0.3, excess / 3) if excess > TOLERATED else excess - TOLERATED
    for causes in (found, two):  # one mistake is likelier than two
        cause = min(causes, key=causes.__getitem__, default="")
        if causes.get(cause, math.inf) < enough:
            return cause
    return None


def find_other_betas(task: Task, spectrum: Tensor, excess: float) -> str | None:
    """Say if the network denoises better as if its betas were half or twice as large; None if it does not.

    The same noisy samples are denoised, so a small difference counts.
    """
    for assumed in _other_betas(task, spectrum):
        if excess - task.excesses(assumed).get(task.denoiser.prediction, math.inf) > max(NOTICED, excess / 4):
            return assumed.cause
    return None


def _other_betas(task: Task, spectrum: Tensor) -> Iterator[Assumption]:
    """Generate the times that a network expects at the same noise levels if it was trained on other betas."""
    schedule = task.schedule
    if schedule.continuous or not schedule.variance_preserving:
        return
    for factor, size in ((0.5, "half"), (2, "twice")):
        alpha = schedule.alpha[1:] ** factor  # ᾱ is a product of the 1 − β
        indices = [1 + int((alpha - level.alpha).abs().argmin()) for level in task.levels]
        levels = [
            replace(level, time=schedule.at(t).time) for level, t in zip(task.levels, indices, strict=True)
        ]
        yield Assumption(
            f"The network seems to be trained with betas about {size} as large: set the schedule's range of "
            "betas to that of its training.",
            levels, task.data, spectrum,
        )  # fmt: skip


def _other_times(task: Task, spectrum: Tensor) -> Iterator[Assumption]:
    """Generate what else the network may receive as time."""
    schedule, data, levels = task.schedule, task.data, task.levels
    if schedule.variance_exploding:
        logs = [replace(level, time=math.log(level.sigma) / 4) for level in levels]
        yield Assumption(
            "The network seems to expect log(σ)/4: set the schedule's time to log_sigma.", logs, data,
            spectrum,
        )  # fmt: skip
    elif schedule.continuous:
        scaled = [replace(level, time=1000 * level.time) for level in levels]
        yield Assumption(
            "The network seems to expect s times 1000: set the schedule's time_scale to 1000.", scaled, data,
            spectrum,
        )  # fmt: skip
    else:
        unit = [replace(level, time=level.time / schedule.T) for level in levels]
        yield Assumption(
            f"The network seems to expect t in [0, 1], but receives 0..{schedule.T - 1}: set the "
            f"schedule's time to fraction (t/T), or its time_scale to 1/{schedule.T}.",
            unit, data, spectrum,
        )  # fmt: skip


def _other_training(task: Task, spectrum: Tensor) -> Iterator[Assumption]:
    """Generate other schedules, and other scales of the data."""
    schedule, data = task.schedule, task.data
    spec = dict(schedule.spec)
    others: list[tuple[str, dict[str, Any]]] = []
    if "T" in spec and not schedule.continuous:
        others += [
            (f"The network seems to be trained with about {T} noise levels, not {schedule.T}: set the number "
             f"of levels T to that of its training.", spec | {"T": T})
            for T in LEVEL_COUNTS
            if T != schedule.T
        ]  # fmt: skip
        others += [
            (f"The network seems to be trained on the {name} schedule, not {spec['name']}.",
             {"name": name, "T": schedule.T})
            for name in ("cosine", "linear", "scaled_linear")
            if name != spec["name"]
        ]  # fmt: skip
    for cause, other in others:
        table = schedules.build(other)
        if table.sigma[-1] > 0.9:  # few levels of a linear schedule do not end in noise
            yield Assumption(cause, [table.at_fraction(fraction) for fraction in FRACTIONS], data, spectrum)
    for how, changed in _rescalings(data):
        cause = (
            f"The network seems to be trained on data {how}, and this data has {_range(data)}: scale it as "
            "in training."
        )
        yield Assumption(cause, task.levels, changed, spectrum_of(changed, task.seed))


def _rescalings(data: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Generate the data in the scales that are usual in training."""
    low, high = data.min(), data.max()
    size = data.std(0, correction=0)
    yield (
        "standardized to mean 0 and standard deviation 1 per coordinate",
        (data - data.mean(0)) / torch.where(size > 0, size, 1.0),
    )
    yield "standardized to mean 0 and standard deviation 1", (data - data.mean()) / data.std()
    yield "scaled to [-1, 1]", 2 * (data - low) / (high - low) - 1
    yield "scaled to [0, 1]", (data - low) / (high - low)


def _range(data: Tensor) -> str:
    return f"values from {data.min():.3g} to {data.max():.3g}, mean {data.mean():.3g}, std {data.std():.3g}"
