"""Training pairs: clean samples noised to random levels, with what the network should answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.conditions import check_conditions, take_rows, to_device
from ..core.noise_streams import mix_seed
from ..core.validation import one_of, require_positive_int, require_samples
from .parameterizations import min_snr_weight, target
from .schedules import Schedule

WEIGHTINGS = ("uniform", "min_snr")


@dataclass(frozen=True)
class Batch:
    """B noised samples.

    Attributes:
        x: x_t = α·x_0 + σ·ε, (B, *shape).
        t: what the network receives, (B,).
        target: what it should answer, (B, *shape).
        weight: the loss weight of each, (B,).
        cond: the conditions of each.
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
        cond = to_device(self.cond, device)
        x, t, target, weight = (v.to(device) for v in (self.x, self.t, self.target, self.weight))
        return Batch(x, t, target, weight, cond)


class Noiser:
    """Noise clean samples to random levels of a schedule, each of t = 1..T equally likely.

    Args:
        schedule: the levels.
        prediction: what the network predicts.
        weighting: `uniform`, or `min_snr` (γ = 5).
        dtype: of the tables, usually the data's.
    """

    def __init__(
        self,
        schedule: Schedule,
        prediction: str,
        weighting: str = "uniform",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        one_of("weighting", weighting, WEIGHTINGS)
        alpha, sigma = schedule.alpha[1:], schedule.sigma[1:]
        minsnr = weighting == "min_snr"
        weight = min_snr_weight(prediction, alpha, sigma) if minsnr else torch.ones_like(alpha)
        self.prediction = prediction
        self._alpha, self._sigma, self._weight = (v.to(dtype) for v in (alpha, sigma, weight))
        times = torch.promote_types(dtype, torch.float32) if schedule.continuous else torch.long
        self._times = schedule.times[1:].to(times)

    def draw(
        self, data: Tensor, n: int, generator: torch.Generator, cond: Mapping[str, Any] | None = None
    ) -> Batch:
        """N pairs: rows of the data (and of the conditions), levels and noise, from the generator."""
        rows = torch.randint(len(data), (n,), generator=generator)
        level = torch.randint(len(self._times), (n,), generator=generator)
        x0 = data[rows]
        # in float32 for every dtype: a seed gives the same pairs to a float64 network
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


@dataclass(frozen=True)
class Pairs:
    """n training pairs that can be walked again and again, the same every time.

    Attributes:
        data: the clean samples, (N, *shape).
        schedule: the noise levels.
        n: how many pairs.
        seed: of rows, levels and noise.
        weighting: of the loss that the model was trained with: `uniform` or `min_snr`.
        cond: conditions, one row a clean sample.
        batch_size: pairs a batch; another size draws other pairs.
    """

    data: Tensor
    schedule: Schedule
    n: int
    seed: int = 0
    weighting: str = "uniform"
    cond: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 500

    def batches(self, prediction: str, dtype: torch.dtype | None = None) -> Iterator[Batch]:
        """The batches for a network that predicts `prediction`."""
        return map(self.batch_source(prediction, dtype), range(len(self)))

    def batch_source(self, prediction: str, dtype: torch.dtype | None = None) -> Callable[[int], Batch]:
        """A function that gives the batch of an index; each has a generator of its own."""
        data = self.data.to("cpu", dtype or self.data.dtype)
        noiser = Noiser(self.schedule, prediction, self.weighting, data.dtype)

        def draw(index: int) -> Batch:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, index))
            return noiser.draw(data, self.length(index), generator, self.cond)

        return draw

    def length(self, index: int) -> int:
        """The number of pairs in the batch of an index: the last may be smaller."""
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
    weighting: str = "uniform",
    cond: Mapping[str, Any] | None = None,
    batch_size: int = 500,
) -> Pairs:
    """Draw n training pairs (x_t, t, target, weight) from clean data, reproducibly.

    Args:
        data: the training data, (N, *shape), a tensor or a NumPy array of floating-point numbers.
        schedule: the noise levels that the model was trained on.
        n: how many pairs.
        seed: of rows, levels and noise.
        weighting: the loss weights that the model was trained with: `uniform` or `min_snr`.
        cond: conditions of the network, one row a sample of the data.
        batch_size: pairs a batch.
    """
    data = require_samples("data", data)
    _check_schedule(schedule)
    require_positive_int("n", n)
    require_positive_int("batch_size", batch_size)
    one_of("weighting", weighting, WEIGHTINGS)
    return Pairs(data, schedule, n, seed, weighting, check_conditions(cond, len(data)), batch_size)


def _check_schedule(schedule: Any) -> None:
    if isinstance(schedule, Schedule):
        return
    if hasattr(schedule, "set_timesteps"):
        raise TypeError(
            f"schedule must be a flare.Schedule, got {type(schedule).__name__}, a scheduler of diffusers; "
            "use flare.from_diffusers((model, scheduler)).schedule."
        )
    raise TypeError(
        f"schedule must be a flare.Schedule, got {type(schedule).__name__}: {schedule!r:.80}; use the one "
        "that the model was trained with, such as flare.schedules.cosine(600)."
    )
