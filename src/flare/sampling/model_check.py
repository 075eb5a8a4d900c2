"""Does a model fit its data? Its denoising errors and its samples, beside what the data alone can say.

Two references per noise level need no training. The error of a network that knows nothing is the variance of
its target. The best linear denoiser of data with covariance eigenvalues λ has the error mean λσ²/(α²λ + σ²)
in x_0, and a trained network is about as good at least. If it is not, its errors under other assumptions
(prediction, time convention, T, schedule, scale of the data) tell which of them it was trained with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import Cond, check_conditions, map_values, take_rows, to_device
from ..core.validation import require_instance
from ..core.validation import require_samples as checked_samples
from ..diffusion import samplers, schedules
from ..diffusion.parameterizations import Prediction, target
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Level, Schedule
from ..network.denoiser import Denoiser, times
from ..network.probing import call
from .data_comparison import DataComparison, compare_with_data
from .sample import sample

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)  # levels as fractions of T
NUMBERS = 4096  # errors per level that are averaged, within 16 to 128 samples
BASIS = 512  # samples that span the principal directions
STEPS = 25  # of the sampler
TOLERATED = 0.1  # excess over the linear denoiser
KNOWS_NOTHING = 0.7
ADVICE = (
    "If schedule, T, prediction and the scale of the data are those of its training, train it longer, or a "
    "larger one, before you filter its samples."
)
# T that are tried
LEVEL_COUNTS = (10, 20, 50, 100, 200, 250, 300, 400, 500, 600, 800, 1000, 1500, 2000, 4000)


@dataclass(frozen=True)
class LevelError:
    """The mean squared error of the network's output at one noise level, beside its references.

    Attributes:
        time: what the network receives.
        error: of the network.
        linear: of the best linear denoiser of the data.
        nothing: of a constant, the variance of the target.
    """

    time: float
    error: float
    linear: float
    nothing: float


@dataclass(frozen=True)
class ModelCheck:
    """What was found of a model and its data.

    Attributes:
        excess: the error of the network between the references, over all levels: 0 is as good as the best
            linear denoiser, below 0 is better, 1 is a network that knows nothing.
        levels: the errors of every level.
        samples: a few samples of the model beside the data; None if they cannot be drawn or compared.
        problems: what is wrong, in plain sentences; empty if nothing is.
    """

    excess: float
    levels: list[LevelError]
    samples: DataComparison | None
    problems: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The problems, or that there is none."""
        return " ".join(self.problems) or "The model fits the data."

    @property
    def facts(self) -> dict[str, Any]:
        """All of it as JSON, with None for what is not a finite number."""
        return map_values(
            lambda v: None if isinstance(v, float) and not math.isfinite(v) else v, asdict(self)
        )

    def __str__(self) -> str:
        return f"excess over a linear denoiser {self.excess:.2g}. {self.verdict}"


@torch.no_grad()
def check_model(
    denoiser: Denoiser,
    data: Tensor,
    schedule: Schedule,
    *,
    steps: Steps | None = None,
    n: int | None = None,
    cond: Cond | None = None,
    seed: int = 0,
) -> ModelCheck:
    """Check that a network denoises its training data, and that its samples look like the data.

    >>> model = flare.zoo.load("sines")                                                # doctest: +SKIP
    >>> flare.check_model(model.denoiser, model.data, model.schedule).verdict          # doctest: +SKIP
    'The model fits the data.'

    Args:
        denoiser: the network.
        data: its training data, (N, *shape), scaled as in training.
        schedule: the noise levels that it was trained on.
        steps: the sampler's table; by default 25 steps of DDIM (Euler for a flow), clipped to the data's
            range.
        n: how many samples to compare; 128, or 32 of a network of more than a million parameters, by default.
        cond: conditions of the network, one row per sample of the data.
        seed: of everything that is drawn.
    """
    require_instance(
        "denoiser", denoiser, Denoiser, "wrap the network: flare.Denoiser(net, prediction='epsilon')"
    )
    data = checked_samples("data", data)
    if len(data) < 2:
        raise ValueError(f"data has {len(data)} sample; a comparison needs at least 2, better hundreds.")
    data = data.to("cpu", torch.promote_types(denoiser.dtype, torch.float32))
    x, cond = data[:2].to(denoiser.device), check_conditions(cond, len(data))
    call(
        denoiser, x, times(schedule.at(schedule.T).time, x), to_device(take_rows(cond, slice(0, 2)), x.device)
    )
    task = _Task(denoiser, data, schedule, cond, seed)
    spread = _spectrum(data, seed)
    if float(spread.sum()) == 0:
        return ModelCheck(math.nan, [], None, ["All samples of the data are the same: is it the right file?"])
    errors = task.errors(_Assumption("", task.levels, data, spread))
    own = errors[denoiser.prediction]
    excess = _excess(own)
    drawn, unable = _draw(task, steps, n or (128 if denoiser.parameter_count < 1_000_000 else 32))
    compared = None if drawn is None else compare_with_data(drawn, data, seed)
    far = unable or (None if compared is None else compared.problem)
    problems: list[str] = []
    if far or not excess <= TOLERATED:
        cause = _likely_cause(task, errors, spread, excess)
        if not excess <= TOLERATED:
            problems = [_describe(own, excess, cause)] + ([far] if far else [])
        else:
            problems = [f"{far} {cause or ADVICE}"]
    return ModelCheck(excess, own, compared, problems)


@dataclass(frozen=True)
class _Assumption:
    """What a network may have been trained with: levels, and data with its spectrum; `cause` says it."""

    cause: str
    levels: Sequence[Level]
    data: Tensor
    spectrum: Tensor


@dataclass(frozen=True)
class _Task:
    denoiser: Denoiser
    data: Tensor
    schedule: Schedule
    cond: dict[str, Any]
    seed: int

    @property
    def levels(self) -> list[Level]:
        return [self.schedule.at_fraction(share) for share in SHARES]

    @property
    def predictions(self) -> list[Prediction]:
        own = self.denoiser.prediction
        others: list[Prediction] = ["epsilon", "sample", "v" if self.schedule.variance_preserving else "flow"]
        return [own, *(name for name in others if name != own)]

    def errors(self, assumed: _Assumption) -> dict[Prediction, list[LevelError]]:
        """The errors of the network per level, for everything that it may predict."""
        generator = torch.Generator().manual_seed(self.seed)
        size = min(128, max(16, NUMBERS // assumed.data[0].numel()))
        found: dict[Prediction, list[LevelError]] = {name: [] for name in self.predictions}
        for level in assumed.levels:
            rows = torch.randint(len(assumed.data), (size,), generator=generator)
            clean = assumed.data[rows]
            # in float32 for every dtype: the same noise for a float64 network
            noise = torch.randn(clean.shape, generator=generator).to(clean.dtype)
            x = (level.alpha * clean + level.sigma * noise).to(self.denoiser.device)
            own = to_device(take_rows(self.cond, rows), x.device)
            out = self.denoiser(x, times(level.time, x), own).cpu()
            alpha, sigma = (torch.tensor(v, dtype=clean.dtype) for v in (level.alpha, level.sigma))
            for name, errors in found.items():
                error = float((out - target(name, alpha, sigma, clean, noise)).double().square().mean())
                error = error if math.isfinite(error) else math.inf
                errors.append(LevelError(level.time, error, *_references(name, level, assumed.spectrum)))
        return found

    def excess(self, assumed: _Assumption) -> float:
        """The excess under another assumption; infinite if the network fails under it."""
        try:
            return _excess(self.errors(assumed)[self.denoiser.prediction])
        except Exception:  # the network is anybody's, and need not take such times
            return math.inf


def _references(prediction: str, level: Level, spectrum: Tensor) -> tuple[float, float]:
    """The errors of the best linear denoiser and of a constant, in units of what the network predicts."""
    alpha2, sigma2, variance = level.alpha**2, level.sigma**2, float(spectrum.mean())
    linear = float((spectrum * sigma2 / (alpha2 * spectrum + sigma2)).mean())
    # an error of 1 in x_0 in these units, and the variance of the target
    unit, nothing = {
        "epsilon": (alpha2 / sigma2, 1.0),
        "sample": (1.0, variance),
        "v": (1 / sigma2, alpha2 + sigma2 * variance),
        "flow": (1 / sigma2, 1 + variance),
    }[prediction]
    return unit * linear, nothing


def _excess(errors: Sequence[LevelError]) -> float:
    above = sum((level.error - level.linear) / level.nothing for level in errors)
    return above / sum(1 - level.linear / level.nothing for level in errors)


def _spectrum(data: Tensor, seed: int) -> Tensor:
    """The variances of the data along its principal directions, (d,) float64.

    The directions come from one half of the data and the variances from the other: with few samples, those
    of the same half are too small in some directions, and a reference by them is better than any network.
    """
    flat = data.flatten(1).double()
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed))
    most = min(BASIS, max(16, 2**24 // flat.shape[1]))
    half = -(-len(flat) // 2)
    basis, rest = flat[order[: min(half, most)]], flat[order[half:][: 4 * most]]
    if not len(rest):
        return torch.zeros(flat.shape[1], dtype=torch.float64)
    mean = basis.mean(0)
    directions = torch.linalg.svd(basis - mean, full_matrices=False).Vh
    along = ((rest - mean) @ directions.T).square().mean(0)
    beyond = flat.shape[1] - len(along)  # directions that the basis does not span share what is left
    left = ((rest - mean).square().sum(1).mean() - along.sum()).clamp(min=0) / max(1, beyond)
    return torch.cat([along, left.expand(beyond)])


def _likely_cause(
    task: _Task, errors: Mapping[Prediction, Sequence[LevelError]], spectrum: Tensor, excess: float
) -> str | None:
    """The assumption under which the network fits far better, as a sentence; None if none does."""
    own = task.denoiser.prediction
    found = {
        f"The network seems to predict {name}, not {own}: set the prediction to {name}.": _excess(levels)
        for name, levels in errors.items()
        if name != own
    }
    found |= {assumed.cause: task.excess(assumed) for assumed in _assumptions(task, spectrum)}
    cause = min(found, key=found.__getitem__)
    enough = min(0.3, excess / 3) if excess > TOLERATED else excess - TOLERATED
    return cause if found[cause] < enough else None


def _assumptions(task: _Task, spectrum: Tensor) -> Iterator[_Assumption]:
    """What else the network may have been trained with."""
    schedule, data, levels = task.schedule, task.data, task.levels
    if schedule.continuous:
        scaled = [replace(level, time=1000 * level.time) for level in levels]
        yield _Assumption(
            "The network seems to expect s times 1000: set the schedule's time_scale to 1000.", scaled, data,
            spectrum,
        )  # fmt: skip
    else:
        unit = [replace(level, time=level.time / schedule.T) for level in levels]
        yield _Assumption(
            f"The network seems to expect t in [0, 1], but receives 0..{schedule.T - 1}: divide t by "
            f"{schedule.T} in its forward.", unit, data, spectrum,
        )  # fmt: skip
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
            yield _Assumption(cause, [table.at_fraction(share) for share in SHARES], data, spectrum)
    for how, changed in _rescaled(data):
        cause = (
            f"The network seems to be trained on data {how}, and this data has {_range(data)}: scale it as "
            "in training."
        )
        yield _Assumption(cause, levels, changed, _spectrum(changed, task.seed))


def _rescaled(data: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The data in the scales that are usual in training."""
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


def _describe(errors: Sequence[LevelError], excess: float, cause: str | None) -> str:
    count = len(errors)
    error, linear = (sum(getattr(e, key) / e.nothing for e in errors) / count for key in ("error", "linear"))
    worse = sum(e.error - e.linear > TOLERATED * e.nothing for e in errors)
    blank = excess >= KNOWS_NOTHING and cause is None
    knows = "knows next to nothing of" if blank else "does not fit"
    figures = (
        f"The network {knows} this data: its denoising error is {error:.3g}, where 1 is knowing nothing and "
        f"the best linear denoiser has {linear:.3g} (far worse at {worse} of {count} noise levels)."
    )
    guess = (
        "Likely causes: untrained weights (does the function load a checkpoint?), or data that is not scaled "
        "as in training."
        if blank
        else "Likely causes: too little training, or a schedule, number of levels T, time convention or "
        "prediction other than in training."
    )
    return f"{figures} {cause or guess}"


def _draw(task: _Task, steps: Steps | None, n: int) -> tuple[Tensor | None, str | None]:
    """A few samples of the model; or None, and why."""
    schedule = task.schedule
    rows = torch.randint(len(task.data), (n,), generator=torch.Generator().manual_seed(task.seed))
    if steps is None:
        if not (schedule.continuous or schedule.variance_preserving):
            return None, None
        make = samplers.euler if schedule.continuous else samplers.ddim
        steps = make(schedule, min(STEPS, schedule.T), clip=float(task.data.abs().max()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say is said here
            result = sample(
                task.denoiser,
                steps,
                n=n,
                shape=task.data.shape[1:],
                cond=take_rows(task.cond, rows),
                seed=task.seed,
            )
    except (ValueError, RuntimeError, FloatingPointError) as error:
        return None, f"The model cannot be sampled: {error}"
    lost = int(result.lost.sum())
    if lost > n // 10:
        return None, f"{lost} of {n} samples of the model have NaN or infinity."
    return result.samples[~result.lost].cpu(), None
