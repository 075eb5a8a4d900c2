"""`flare.check_model`: does a model fit its data? Its errors and samples, compared with the data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import Cond, check_conditions, map_values, take_rows
from ..core.precision import no_autocast
from ..core.validation import find_range, require_samples
from ..diffusion import samplers
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..model import STEPS, Model
from ..network.denoiser import Denoiser, require_denoiser
from ..sampling.batches import Trajectories
from ..sampling.plan import make_plan
from .denoising_errors import Assumption, DenoisingTask, LevelError, excess_of, spectrum_of
from .likely_cause import TOLERATED, find_likely_cause, find_other_schedule

FEW_STEPS = 20  # of the default sampler; if these samples are far from the data, its usual number decides
MORE_STEPS = 200  # of DDPM, which tell whether the sampler is at fault; Heun's method needs a quarter
MIN_DATA = 20  # samples of the data; fewer say too little
COMPARED = 1000  # samples of the data to compare with
NEIGHBORS = 5
SPLITS = 20  # of the data, for the reference of the energy distance
FAR = 1 / 3  # a model is far from the data if more than this fraction of its samples is
KNOWS_NOTHING = 0.7  # excess; a network without training has about 1
FAR_OFF = 3  # times the error of knowing nothing: that is no lack of training
WRONG = "The model itself is wrong there, and no score of the model can correct that."
ADVICE = (
    "If schedule, T, prediction and the scale of the data match its training, train it longer, or train a "
    "larger network, before you filter its samples."
)


@dataclass(frozen=True)
class DataComparison:
    """Samples of a model, compared with its data.

    Attributes:
        n: The number of samples.
        far: The fraction of the samples that are farther from the data than 99% of other data is, by the mean
            distance to the 5 nearest of up to 1,000 samples of the data.
        energy_distance: The energy distance to the data, as a fraction of the mean distance within the data.
        energy_reference: The largest energy distance between two parts of the data, over 20 random splits.
        mean: The mean of all numbers of the samples.
        std: Their standard deviation.
        low: The smallest number.
        high: The largest number.
        data_mean: The mean of the data.
        data_std: The standard deviation of the data.
        data_low: The smallest number of the data.
        data_high: The largest number of the data.
    """

    n: int
    far: float
    energy_distance: float
    energy_reference: float
    mean: float
    std: float
    low: float
    high: float
    data_mean: float
    data_std: float
    data_low: float
    data_high: float

    @property
    def problem(self) -> str | None:
        """The problem of the samples, in plain words; None if there is none."""
        distant = self.energy_distance > max(3 * self.energy_reference, 0.02)
        off_center = abs(self.mean - self.data_mean) > 0.5 * self.data_std
        off_size = not 2 / 3 < self.std / self.data_std < 3 / 2
        signs = {
            f"{self.far:.0%} of {self.n} are farther from it than 99% of real samples are": self.far > FAR,
            f"their energy distance to it is {self.energy_distance:.3g} (within the data at most "
            f"{self.energy_reference:.3g})": distant,
            f"their mean is {self.mean:.3g} and their standard deviation {self.std:.3g} (data: "
            f"{self.data_mean:.3g} and {self.data_std:.3g})": off_center or off_size,
        }
        if not any(signs.values()):
            return None
        seen = ", ".join(sign for sign, is_seen in signs.items() if is_seen)
        return f"The model's samples are far from the data: {seen}."


@dataclass(frozen=True)
class ModelCheck:
    """How a model fits its data.

    Attributes:
        excess: The error of the network between the references, over all levels: 0 is as good as the best
            linear denoiser, below 0 is better, 1 is a constant predictor.
        levels: The errors of every level.
        samples: A comparison of a few samples with the data; None if they cannot be drawn or compared.
        problems: The problems, as sentences; empty if there are none.
        limited: The problems that concern only samples that the model draws, not existing ones. An empty list
            means all samplers. [name, steps] means this sampler with fewer than this many steps.
    """

    excess: float
    levels: list[LevelError]
    samples: DataComparison | None
    problems: list[str] = field(default_factory=list)
    limited: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The problems, or a sentence that there are none."""
        return " ".join(self.problems) or "The model fits the data."

    @property
    def facts(self) -> dict[str, Any]:
        """All fields as JSON values, with None for numbers that are not finite."""
        return map_values(
            lambda v: None if isinstance(v, float) and not math.isfinite(v) else v, asdict(self)
        )

    def __str__(self) -> str:
        return f"excess over a linear denoiser {self.excess:.2g}. {self.verdict}"


def check_model(
    denoiser: Denoiser,
    data: Tensor,
    schedule: Schedule,
    *,
    steps: Steps | None = None,
    n: int | None = None,
    cond: Cond | None = None,
    held_out: Tensor | None = None,
    seed: int = 0,
) -> ModelCheck:
    """Check that a network denoises its training data, and that its samples look like the data.

    >>> flare.check_model(denoiser, data, schedule, steps=steps, n=32).verdict
    'The model fits the data.'

    Args:
        denoiser: The network.
        data: The training data, (N, *shape), scaled as in training.
        schedule: The noise levels that it was trained on.
        steps: The sampler's table; by default 20 steps of DDIM (Euler for a flow), clipped to the range of
            the data, then 50 steps if the samples are far from the data.
        n: The number of samples to compare; by default 128, or 32 if the network has over a million
            parameters.
        cond: Conditions of the network, one row per sample of the data.
        held_out: At least 20 real samples that the network has not seen, to compare with instead of `data`.
        seed: Random seed for everything that is drawn.
    """
    require_denoiser(denoiser)
    data = require_samples("data", data)
    model = Model(denoiser, schedule)
    given = check_conditions(cond, len(data))
    model.try_on(data, given)
    return inspect_model(model, data, steps=steps, n=n, cond=given, held_out=held_out, seed=seed)


@torch.no_grad()
@no_autocast()
def inspect_model(
    model: Model,
    data: Tensor,
    *,
    steps: Steps | None = None,
    n: int | None = None,
    cond: Cond | None = None,
    held_out: Tensor | None = None,
    seed: int = 0,
) -> ModelCheck:
    """The check of `check_model`, for a model that has already been called on the data."""
    if len(data) < 2:
        raise ValueError(f"data has {len(data)} sample; a comparison needs at least 2, preferably hundreds.")
    denoiser = model.denoiser
    data = data.to("cpu", torch.promote_types(denoiser.dtype, torch.float32))
    task = DenoisingTask(denoiser, data, model.schedule, dict(cond or {}), seed)
    spread = spectrum_of(data, seed)
    if float(spread.sum()) == 0:
        return ModelCheck(math.nan, [], None, ["All samples of the data are the same: is it the right file?"])
    errors = task.errors(Assumption("", task.levels, spread))
    own = errors[denoiser.prediction]
    excess = excess_of(own)
    n = n or (128 if denoiser.parameter_count < 1_000_000 else 32)
    real = data if held_out is None or len(held_out) < MIN_DATA else held_out.to(data)
    compared, far = None, None
    for table in _default_tables(model, task) if steps is None else [steps]:
        compared, far = _compare(model, task, table, n, real)
        if far is None:
            break
    problems: list[str] = []
    limited: dict[str, list[Any]] = {}
    other = find_other_schedule(task, spread, excess) if excess <= TOLERATED else None
    if far or other or not excess <= TOLERATED:
        cause = find_likely_cause(task, errors, spread, excess) or other
        if far and cause is None:
            better, fault = _blame_sampler(model, task, table, n, real)
            far = f"{far} {fault or WRONG}"
            concerned = [] if better is None else [table.name, len(better)]
            far += f" {ADVICE}" if excess <= TOLERATED and not fault else ""
            limited = {far: concerned}
        if not excess <= TOLERATED:
            problems = [_describe(own, excess, cause)] + ([far] if far else [])
        else:
            problems = [f"{far or ''} {cause or ''}".strip()]
    return ModelCheck(excess, own, compared, problems, limited)


def _default_tables(model: Model, task: DenoisingTask) -> Iterator[Steps]:
    """A few steps of the default sampler, then its usual number; none if there is no default sampler."""
    with suppress(ValueError):
        for count in (FEW_STEPS, STEPS):
            yield model.steps(min(count, model.schedule.T), clip=max(map(abs, find_range(task.data))))


def _blame_sampler(
    model: Model, task: DenoisingTask, table: Steps, n: int, real: Tensor
) -> tuple[Steps | None, str | None]:
    """Draw the same samples more accurately; if they fit the data, return how, and a sentence."""
    if model.schedule.variance_preserving:
        make: Callable[..., Steps] = samplers.ddpm
        count = min(MORE_STEPS, model.schedule.T)
    else:
        make, count = samplers.heun, MORE_STEPS // 4
    better = make(model.schedule, count, clip=max(map(abs, find_range(task.data))))
    if table.name == better.name and len(table) >= len(better):
        return None, None
    compared, far = _compare(model, task, better, n, real)
    if compared is None or far:
        return None, None
    return better, (
        f"The sampler is at fault, not the network: of the same samples, drawn with {better.name} in "
        f"{len(better)} steps instead of {table.name} in {len(table)}, {compared.far:.0%} are. Draw with "
        f"{better.name} instead, as flare.samplers.{better.name}(schedule, {count}), or with more steps."
    )


def _compare(
    model: Model, task: DenoisingTask, table: Steps, n: int, real: Tensor
) -> tuple[DataComparison | None, str | None]:
    """Draw n samples and compare them with real data; also returns what is wrong with them."""
    rows = torch.randint(len(task.data), (n,), generator=torch.Generator().manual_seed(task.seed))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the comparison reports what is wrong
            cond, shape = take_rows(task.cond, rows), tuple(task.data.shape[1:])
            plan = make_plan(model, table, None, n, shape, cond=cond, seed=task.seed)
            result = Trajectories(plan).finish()
    except (ValueError, RuntimeError, FloatingPointError) as error:
        return None, f"The model cannot be sampled: {error}"
    lost = result.lost
    if lost.sum() > n // 10:
        return None, f"{int(lost.sum())} of {n} samples of the model have NaN or infinity."
    compared = compare_with_data(result.samples[~lost].cpu(), real, task.seed)
    return compared, None if compared is None else compared.problem


def _describe(errors: Sequence[LevelError], excess: float, cause: str | None) -> str:
    count = len(errors)
    error, linear = (sum(getattr(e, key) / e.nothing for e in errors) / count for key in ("error", "linear"))
    worse = sum(e.error - e.linear > TOLERATED * e.nothing for e in errors)
    blank = excess >= KNOWS_NOTHING and cause is None
    knows = "has learned next to nothing of" if blank else "does not fit"
    figures = (
        f"The network {knows} this data: its denoising error is {error:.3g}, where 1 is a constant predictor "
        f"and the best linear denoiser has {linear:.3g} (far worse at {worse} of {count} noise levels)."
    )
    if error > FAR_OFF:
        guess = (
            "Likely causes: another time convention (such as t in [0, 1]), prediction, schedule or scale of "
            "the data than in training, or several of them."
        )
    elif blank:
        guess = (
            "Likely causes: untrained weights (was a checkpoint loaded?), or data that is not scaled as in "
            "training."
        )
    else:
        guess = (
            "Likely causes: too little training, or a schedule, number of levels T, time convention or "
            "prediction other than in training."
        )
    return f"{figures} {cause or guess}"


def compare_with_data(samples: Tensor, data: Tensor, seed: int = 0) -> DataComparison | None:
    """Compare samples (n, *shape) with data (N, *shape); None if the data has fewer than 20 samples.

    Args:
        samples: The samples of a model.
        data: The data that it was trained on, or better, more data of the same kind.
        seed: Random seed for the rows of the data, and for its splits.
    """
    if len(data) < MIN_DATA:
        return None
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    n = len(samples)
    held = min(n, len(data) // 2)
    x, real = samples.flatten(1).double(), data[order[: held + COMPARED]].flatten(1).double()
    numbers = [(v.mean(), v.std(), v.min(), v.max()) for v in (x, real)]
    origin = real.median(0).values  # far from 0 the products of cdist cancel
    x, real = x - origin, real - origin
    reference = real[held:]
    within, across = torch.cdist(real, real), torch.cdist(x, reference)
    typical = float(_mean_between(within))
    k = min(NEIGHBORS, len(reference))
    ours, theirs = (d.topk(k, largest=False).values.mean(1) for d in (across, within[:held, held:]))
    parts = [held, len(real) - held]
    splits = (torch.randperm(len(real), generator=generator).split(parts) for _ in range(SPLITS))
    null = [_energy(within[a][:, b], within[a][:, a], within[b][:, b]) for a, b in splits]
    energy = _energy(across, torch.cdist(x, x), within[held:, held:])
    return DataComparison(
        n,
        float((ours > theirs.quantile(0.99)).double().mean()),
        energy / typical,
        max(null) / typical,
        *(float(value) for both in numbers for value in both),
    )


def _mean_between(distances: Tensor) -> Tensor:
    """The mean distance of two different samples, from the distances of all, (n, n)."""
    return distances.sum() / (len(distances) * (len(distances) - 1))


def _energy(across: Tensor, first: Tensor, second: Tensor) -> float:
    """2·E‖x−y‖ − E‖x−x'‖ − E‖y−y'‖ from the distances across and within two clouds."""
    return float(2 * across.mean() - _mean_between(first) - _mean_between(second))
