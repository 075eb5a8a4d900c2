"""Training pairs: clean samples noised to random levels, with the targets of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.conditions import check_conditions, take_rows, to_device
from ..core.noise_streams import SPLIT_STREAM, mix_seed
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from .parameterizations import Prediction, check_level, check_prediction, min_snr_weight, target
from .schedules import Schedule

Weighting = Literal["uniform", "min_snr"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
LevelSampling = Literal["uniform", "log_snr"]
LEVEL_SAMPLINGS: tuple[LevelSampling, ...] = get_args(LevelSampling)
LOG_SNR_WIDTH = 2.0  # standard deviation of log(α²/σ²) under `log_snr`


@dataclass(frozen=True)
class Batch:
    """B noised samples.

    Attributes:
        x: x_t = α·x_0 + σ·ε, (B, *shape).
        t: The times that the network receives, (B,).
        target: The targets of the network, (B, *shape).
        weight: The loss weights, (B,).
        cond: The conditions, one row per sample.
    """

    x: Tensor
    t: Tensor
    target: Tensor
    weight: Tensor
    cond: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        x, t, target, weight = (v.to(device) for v in (self.x, self.t, self.target, self.weight))
        return Batch(x, t, target, weight, to_device(self.cond, device))


class Noiser:
    """Noise clean samples to random levels t = 1..T of a schedule.

    Args:
        schedule: The noise levels.
        prediction: What the network predicts.
        weighting: The loss weights: `uniform`, or `min_snr` (γ = 5).
        dtype: The dtype of the tables, usually that of the data.
        level_sampling: How levels are drawn: `uniform`, or `log_snr` (see `compute_level_probabilities`).
    """

    def __init__(
        self,
        schedule: Schedule,
        prediction: Prediction,
        weighting: Weighting = "uniform",
        dtype: torch.dtype = torch.float32,
        level_sampling: LevelSampling = "uniform",
    ) -> None:
        one_of("weighting", weighting, WEIGHTINGS)
        one_of("level sampling", level_sampling, LEVEL_SAMPLINGS)
        prediction = check_prediction(prediction)
        alpha, sigma = schedule.alpha[1:], schedule.sigma[1:]
        check_level(prediction, *(float(table[-1]) for table in (schedule.times, alpha, sigma)))
        weight = torch.ones_like(alpha)
        if weighting == "min_snr":
            weight = min_snr_weight(prediction, alpha, sigma)
        self.prediction = prediction
        self._alpha, self._sigma, self._weight = (v.to(dtype) for v in (alpha, sigma, weight))
        times = torch.long if schedule.integer_times else torch.promote_types(dtype, torch.float32)
        self._times = schedule.times[1:].to(times)
        self._probabilities = None if level_sampling == "uniform" else compute_level_probabilities(schedule)

    def draw(
        self,
        data: Tensor,
        n: int,
        generator: torch.Generator,
        cond: Mapping[str, Any] | None = None,
        among: Tensor | None = None,
    ) -> Batch:
        """Draw n pairs: the generator picks rows of the data and conditions, levels and noise.

        `among` lists the rows to pick from; by default all rows.
        """
        rows = torch.randint(len(data) if among is None else len(among), (n,), generator=generator)
        rows = rows if among is None else among[rows]
        if self._probabilities is None:
            level = torch.randint(len(self._times), (n,), generator=generator)
        else:
            level = torch.multinomial(self._probabilities, n, replacement=True, generator=generator)
        x0 = data[rows].to(self._alpha.dtype)
        # in float32 for every dtype, so that a seed draws the same pairs for a float64 network
        noise = torch.randn(x0.shape, generator=generator, dtype=torch.float32).to(x0.dtype)
        column = (n, *[1] * (x0.ndim - 1))
        alpha, sigma = self._alpha[level].view(column), self._sigma[level].view(column)
        return Batch(
            x=alpha * x0 + sigma * noise,
            t=self._times[level],
            target=target(self.prediction, alpha, sigma, x0, noise),
            weight=self._weight[level],
            cond=take_rows(to_device(cond or {}, "cpu"), rows),
        )


def compute_level_probabilities(schedule: Schedule, width: float = LOG_SNR_WIDTH) -> Tensor:
    """Probabilities of t = 1..T, (T,), under which log(α²/σ²) is normal around 0, where SNR = 1.

    Level t receives the mass of N(0, width²) between the midpoints to its neighbors; at a midpoint, α and σ
    are the means of both levels. The first and the last level also receive the tails, so a last level with
    α = 0 is also drawn.

    >>> probabilities = flare.noising.compute_level_probabilities(schedule)
    >>> probabilities.shape, round(float(probabilities.sum()), 6)
    (torch.Size([600]), 1.0)
    """
    alpha, sigma = schedule.alpha[1:], schedule.sigma[1:]
    edges = 2 * ((alpha[:-1] + alpha[1:]) / (sigma[:-1] + sigma[1:])).log()
    below = torch.special.ndtr(edges / width)
    return -torch.cat([below.new_ones(1), below, below.new_zeros(1)]).diff()


@dataclass(frozen=True)
class Pairs:
    """n training pairs; every iteration yields the same pairs.

    Attributes:
        data: The clean samples, (N, *shape).
        schedule: The noise levels.
        n: The number of pairs.
        seed: Random seed for rows, levels and noise.
        weighting: The loss weights that the model was trained with: `uniform` or `min_snr`.
        cond: Conditions, one row per clean sample.
        batch_size: Pairs per batch; a different size draws different pairs.
        rows: The rows of the data that pairs are drawn from; None for all.
    """

    data: Tensor
    schedule: Schedule
    n: int
    seed: int = 0
    weighting: Weighting = "uniform"
    cond: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 500
    rows: Tensor | None = None

    @property
    def samples(self) -> int:
        """The number of clean samples that pairs are drawn from."""
        return len(self.data) if self.rows is None else len(self.rows)

    def batches(self, prediction: Prediction, dtype: torch.dtype | None = None) -> Iterator[Batch]:
        """The batches for a network that predicts `prediction`."""
        return map(self.batch_source(prediction, dtype), range(len(self)))

    def batch_source(
        self, prediction: Prediction, dtype: torch.dtype | None = None
    ) -> Callable[[int], Batch]:
        """A function from index to batch; every batch has its own generator."""
        data = self.data.cpu()
        noiser = Noiser(self.schedule, prediction, self.weighting, dtype or data.dtype)

        def draw(index: int) -> Batch:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, index))
            return noiser.draw(data, self.length(index), generator, self.cond, self.rows)

        return draw

    def length(self, index: int) -> int:
        """The number of pairs in the batch with this index; the last batch may be smaller."""
        return min(self.batch_size, self.n - index * self.batch_size)

    def __len__(self) -> int:
        """The number of batches."""
        return -(-self.n // self.batch_size)


def pairs(
    data: Tensor | NDArray[Any],
    schedule: Schedule,
    n: int = 20_000,
    seed: int = 0,
    *,
    weighting: Weighting = "uniform",
    cond: Mapping[str, Any] | None = None,
    batch_size: int = 500,
) -> Pairs:
    """Draw n training pairs (x_t, t, target, weight) from clean data, reproducibly.

    >>> pairs = flare.noising.pairs(data, schedule, n=100, seed=0)
    >>> flare.posteriors.dense(denoiser, subset, pairs).subset.size
    50

    Args:
        data: The training data, (N, *shape), a floating-point tensor or NumPy array.
        schedule: The noise levels that the model was trained on.
        n: The number of pairs.
        seed: Random seed for rows, levels and noise.
        weighting: The loss weights that the model was trained with: `uniform` or `min_snr`.
        cond: Conditions of the network, one row per sample of the data.
        batch_size: Pairs per batch.
    """
    data = require_samples("data", data)
    advice = "use the one that the model was trained with, such as flare.schedules.cosine(600)"
    if hasattr(schedule, "set_timesteps"):
        advice = "use flare.from_diffusers((model, scheduler)).schedule"
    require_instance("schedule", schedule, Schedule, advice)
    require_positive_int("n", n)
    require_positive_int("batch_size", batch_size)
    one_of("weighting", weighting, WEIGHTINGS)
    return Pairs(data, schedule, n, seed, weighting, check_conditions(cond, len(data)), batch_size)


def split(data: Tensor | NDArray[Any], fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split the rows of data at random into a training part and a held-out part, reproducibly.

    The choice of rows depends on their number, the fraction and the seed, so a second call with the same
    numbers splits labels or other conditions in the same way.

    >>> train, held_out = flare.noising.split(torch.rand(50, 3), 0.1, seed=0)
    >>> len(train), len(held_out)
    (45, 5)

    Args:
        data: Samples or conditions, one row each, a tensor or NumPy array.
        fraction: The fraction of the rows to hold out, at least one row.
        seed: Random seed for the choice.

    Returns:
        The training part and the held-out part; rows keep their order.
    """
    rows = torch.as_tensor(data)
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction!r}; 0.1 holds out a tenth of the rows.")
    if rows.ndim == 0 or len(rows) < 2:
        raise ValueError(
            f"data must have at least 2 rows, one for each part, got shape {tuple(rows.shape)}; "
            "give more data."
        )
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    held_out = torch.zeros(len(rows), dtype=torch.bool)
    held_out[torch.randperm(len(rows), generator=generator)[:count]] = True
    held_out = held_out.to(rows.device)
    return rows[~held_out], rows[held_out]
