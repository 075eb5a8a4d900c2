"""Training pairs: clean samples, noised to random levels, with what the network should answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import one_of
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
        rows: which rows of the data they came from, (B,).
    """

    x: Tensor
    t: Tensor
    target: Tensor
    weight: Tensor
    rows: Tensor


class Noiser:
    """Noise clean samples to random levels of a schedule.

    Args:
        schedule: the levels; each of t = 1..T is equally likely.
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
        weight = (
            min_snr_weight(prediction, alpha, sigma) if weighting == "min_snr" else torch.ones_like(alpha)
        )
        self.prediction = prediction
        self._alpha, self._sigma, self._weight = (v.to(dtype) for v in (alpha, sigma, weight))
        self._times = schedule.times[1:].to(dtype if schedule.continuous else torch.long)

    def draw(self, data: Tensor, n: int, generator: torch.Generator) -> Batch:
        """N pairs: rows of the data (n0, *shape), levels and noise, all from the generator."""
        rows = torch.randint(len(data), (n,), generator=generator)
        level = torch.randint(len(self._times), (n,), generator=generator)
        x0 = data[rows]
        noise = torch.randn(x0.shape, generator=generator, dtype=x0.dtype)
        column = (n, *[1] * (x0.ndim - 1))
        alpha, sigma = self._alpha[level].view(column), self._sigma[level].view(column)
        return Batch(
            x=alpha * x0 + sigma * noise,
            t=self._times[level],
            target=target(self.prediction, alpha, sigma, x0, noise),
            weight=self._weight[level],
            rows=rows,
        )
