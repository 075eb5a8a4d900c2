"""Why a network does not fit its data: assumptions about its training under which it would fit.

The errors of the network are computed under every assumption (prediction, σ_data, time, T, schedule, range of
its betas, scale of the data). The one under which they are far smaller is the likely cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..diffusion import schedules
from ..diffusion.parameterizations import SIGMA_DATA, Prediction, check_prediction, sigma_data
from ..network.denoiser import Denoiser
from .denoising_errors import FRACTIONS, Assumption, DenoisingTask, LevelError, excess_of, spectrum_of

TOLERATED = 0.1  # excess over the linear denoiser
NOTICED = 0.01  # excess that another schedule saves, if it saves a quarter of it
CLEAR = 0.02  # difference of the excess under two values of T that tells them apart
# values of T that are tried
LEVEL_COUNTS = (10, 20, 50, 100, 200, 250, 300, 400, 500, 600, 800, 1000, 1500, 2000, 4000)


def find_likely_cause(
    task: DenoisingTask, errors: Mapping[Prediction, Sequence[LevelError]], spectrum: Tensor, excess: float
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
    for assumed in (*_other_scales(task), *_other_schedules(task, spectrum)):
        found[assumed.cause] = task.excesses(assumed).get(own, math.inf)
    for cause, name in _other_preconditioning(task):
        other = replace(task, denoiser=Denoiser(task.denoiser.module, name))
        known = Assumption(cause, task.levels, spectrum)
        found[cause] = other.excesses(known).get(name, math.inf)
    if counts := _try_level_counts(task, spectrum):
        found[_say_level_count(task.schedule.T, counts)] = min(counts.values())
    enough = min(0.3, excess / 3) if excess > TOLERATED else excess - TOLERATED
    for causes in (found, two):  # one mistake is likelier than two
        cause = min(causes, key=causes.__getitem__, default="")
        if causes.get(cause, math.inf) < enough:
            return cause
    return None


def find_other_schedule(task: DenoisingTask, spectrum: Tensor, excess: float) -> str | None:
    """Find a schedule with which the network denoises better, as a sentence; None if there is none.

    The same noisy samples are denoised, so a small difference counts.
    """
    own = task.denoiser.prediction
    found = {each.cause: task.excesses(each).get(own, math.inf) for each in _other_schedules(task, spectrum)}
    cause = min(found, key=found.__getitem__, default="")
    return cause if excess - found.get(cause, math.inf) > max(NOTICED, excess / 4) else None


def _other_schedules(task: DenoisingTask, spectrum: Tensor) -> Iterator[Assumption]:
    """Generate the times that a network of another schedule expects at the same noise levels."""
    schedule = task.schedule
    if schedule.continuous or not schedule.variance_preserving:
        return
    tables = {
        f"The network seems to be trained with betas about {size} as large: set the schedule's range of "
        "betas to the range of its training.": schedule.alpha ** factor  # ᾱ is a product of the 1 − β
        for factor, size in ((0.5, "half"), (2, "twice"))
    }  # fmt: skip
    own = schedule.spec.get("name")
    for name in ("cosine", "linear", "scaled_linear"):
        table = schedules.build({"name": name, "T": schedule.T})
        if name != own and table.sigma[-1] > 0.9:  # few linear levels do not end in noise
            said = "this one" if own is None or own.startswith("from_") else own
            tables[f"The network seems to be trained on the {name} schedule, not {said}."] = table.alpha
    for cause, alpha in tables.items():
        indices = [1 + int((alpha[1:] - level.alpha).abs().argmin()) for level in task.levels]
        times = [schedule.at(index).time for index in indices]
        levels = [replace(level, time=time) for level, time in zip(task.levels, times, strict=True)]
        yield Assumption(cause, levels, spectrum)


def _other_times(task: DenoisingTask, spectrum: Tensor) -> Iterator[Assumption]:
    """Generate other time conventions, including time that runs backward."""
    schedule, levels = task.schedule, task.levels
    first, last = float(schedule.times[0 if schedule.continuous else 1]), float(schedule.times[-1])
    backward = [replace(level, time=first + last - level.time) for level in levels]
    if schedule.variance_exploding:
        known = schedule.spec.get("time", "sigma")
        name, said = ("sigma", "σ") if known == "log_sigma" else ("log_sigma", "log(σ)/4")
        others = [
            replace(level, time=level.sigma if name == "sigma" else math.log(level.sigma) / 4)
            for level in levels
        ]
        cause = f"The network seems to expect {said}: set the schedule's time to {name}."
        yield Assumption(cause, others, spectrum)
    elif schedule.continuous:
        scaled = [replace(level, time=1000 * level.time) for level in levels]
        yield Assumption(
            "The network seems to expect s times 1000: set the schedule's time_scale to 1000.", scaled,
            spectrum,
        )  # fmt: skip
        yield Assumption(
            "The network seems to run time backward, with noise at t = 0, and to predict x_0 − ε: give a "
            f"module that returns -net(x, {last:g} - t).",
            backward, spectrum, sign=-1.0,
        )  # fmt: skip
        yield Assumption(
            "The network seems to predict x_0 − ε, not ε − x_0: give a module that returns -net(x, t).",
            levels, spectrum, sign=-1.0,
        )  # fmt: skip
    else:
        unit = [replace(level, time=level.time / schedule.T) for level in levels]
        yield Assumption(
            f"The network seems to expect t in [0, 1], but receives 0..{schedule.T - 1}: set the "
            f"schedule's time to fraction (t/T), or its time_scale to 1/{schedule.T}.",
            unit, spectrum,
        )  # fmt: skip
    if not schedule.variance_exploding:
        yield Assumption(
            f"The network seems to run time backward, with noise at t = {first:g}: give a module that "
            f"returns net(x, {first + last:g} - t).",
            backward, spectrum,
        )  # fmt: skip


def _other_preconditioning(task: DenoisingTask) -> Iterator[tuple[str, Prediction]]:
    """Generate other predictions of a network in the preconditioning of EDM, with its σ_data and inputs."""
    own = task.denoiser.prediction
    if (known := sigma_data(own)) is None:
        return
    kind = own.partition(":")[0]
    other, said = ("edm_sigma", "σ") if kind == "edm" else ("edm", "log(σ)/4")
    name = check_prediction(f"{other}:{known:g}")
    yield f"The network seems to expect {said}: set the prediction to {name}.", name
    for size in {SIGMA_DATA, 1.0, float(f"{task.data.std():.2g}")} - {known}:
        name = check_prediction(f"{kind}:{size:g}")
        cause = f"The network seems to be trained with σ_data = {size:g}, not {known:g}"
        yield f"{cause}: set the prediction to {name}.", name


def _try_level_counts(task: DenoisingTask, spectrum: Tensor) -> dict[int, float]:
    """The excess of the network if T noise levels are assumed, by T."""
    found: dict[int, float] = {}
    spec = dict(task.schedule.spec)
    if "T" in spec and not task.schedule.continuous:
        for T in LEVEL_COUNTS:
            table = schedules.build(spec | {"T": T})
            if T != task.schedule.T and table.sigma[-1] > 0.9:  # few linear levels do not end in noise
                levels = [table.at_fraction(fraction) for fraction in FRACTIONS]
                assumed = Assumption("", levels, spectrum)
                found[T] = task.excesses(assumed).get(task.denoiser.prediction, math.inf)
    return found


def _say_level_count(own: int, counts: Mapping[int, float]) -> str:
    """Name the T that fits best, and the range of those that are not clearly worse."""
    tried = [1, *sorted([*counts, own]), math.inf]
    best = min(counts, key=counts.__getitem__)
    near = [T for T, value in counts.items() if value <= counts[best] + CLEAR]
    low, high = tried[tried.index(min(near)) - 1], tried[tried.index(max(near)) + 1]
    within = f"more than {low}" if high == math.inf else f"between {low} and {high}"
    return (
        f"The network seems to be trained with about {best} noise levels ({within}), not {own}: set the "
        "number of levels T to the value of its training."
    )


def _other_scales(task: DenoisingTask) -> Iterator[Assumption]:
    """Generate other scales of the data."""
    for how, rescale in _rescalings(task.data):
        cause = (
            f"The network seems to be trained on data {how}, and this data has {_range(task.data)}: scale it "
            "as in training."
        )
        spectrum = spectrum_of(task.data, task.seed, rescale)
        yield Assumption(cause, task.levels, spectrum, rescale=rescale)


def _rescalings(data: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Generate the scales that are usual in training, as functions of samples of the data."""
    low, high = data.min(), data.max()
    mean, size = data.mean(0), data.std(0, correction=0)
    yield (
        "standardized to mean 0 and standard deviation 1 per coordinate",
        lambda x: (x - mean) / torch.where(size > 0, size, 1.0),
    )
    center, spread = data.mean(), data.std()
    yield "standardized to mean 0 and standard deviation 1", lambda x: (x - center) / spread
    yield "scaled to [-1, 1]", lambda x: 2 * (x - low) / (high - low) - 1
    yield "scaled to [0, 1]", lambda x: (x - low) / (high - low)


def _range(data: Tensor) -> str:
    return f"values from {data.min():.3g} to {data.max():.3g}, mean {data.mean():.3g}, std {data.std():.3g}"
