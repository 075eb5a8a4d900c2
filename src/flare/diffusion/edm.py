"""The variance-exploding schedule of EDM (Karras et al. 2022): α = 1, and σ from σ_min to σ_max.

Networks are trained on log σ ~ N(mean, std²), sampled on another grid, σ^(1/ρ) linear in the step. The levels
t = 1..T are those of training: σ(t) is the quantile (t−1)/(T−1) of the training distribution between σ_min
and σ_max. A uniform t is thus a training level, as for discrete schedules, and a fraction of T means the same
for scores: a level that is noisier than this fraction of the training levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.validation import one_of
from .schedule import Level, Schedule

SigmaGrid = Literal["karras", "exponential", "uniform"]
SIGMA_GRIDS: tuple[SigmaGrid, ...] = get_args(SigmaGrid)


@dataclass(frozen=True)
class TrainingLevels:
    """A normal distribution of log σ, truncated to [low, high] in σ.

    Attributes:
        low: σ_min.
        high: σ_max.
        mean: the mean of log σ before truncation.
        std: its standard deviation.
    """

    low: float
    high: float
    mean: float
    std: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"sigma_min and sigma_max must be finite with 0 < sigma_min < sigma_max, got {self.low} and "
                f"{self.high}."
            )
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf):
            raise ValueError(
                f"training must be a finite mean and a positive standard deviation of log σ, got "
                f"{(self.mean, self.std)}."
            )
        below, above = self._ends
        if not above > below:
            raise ValueError(
                f"no training level lies in [{self.low}, {self.high}]: log σ has the mean {self.mean} and "
                f"the standard deviation {self.std}; give those of the model's training."
            )

    @property
    def _ends(self) -> tuple[float, float]:
        ends = torch.tensor([self.low, self.high], dtype=torch.float64)
        below, above = self._cdf(ends).tolist()
        return below, above

    def _cdf(self, sigma: Tensor) -> Tensor:
        return torch.special.ndtr((sigma.log() - self.mean) / self.std)

    def quantile(self, u: Tensor) -> Tensor:
        """σ below which a fraction u of the training levels lies."""
        below, above = self._ends
        z = torch.special.ndtri(below + u * (above - below))
        inner = (self.mean + self.std * z).exp().clamp(self.low, self.high)
        return torch.where(u <= 0, self.low, torch.where(u >= 1, self.high, inner))

    def fraction(self, sigma: float) -> float:
        """The fraction of the training levels below σ: 0 up to σ_min, 1 from σ_max on."""
        below, above = self._ends
        here = float(self._cdf(torch.tensor(sigma, dtype=torch.float64)))
        return min(1.0, max(0.0, (here - below) / (above - below)))


@dataclass(frozen=True, eq=False, repr=False)
class VarianceExploding(Schedule):
    """A schedule with α = 1 whose levels between the entries of the table are exact.

    Attributes:
        training: the distribution of the levels; σ(t) is a quantile of it.
        rho: ρ of the grid of Karras et al., which samplers walk by default.
    """

    training: TrainingLevels = TrainingLevels(0.002, 80.0, -1.2, 1.2)
    rho: float = 7.0

    def at(self, t: float) -> Level:
        """The level at t in 0..T; below t = 1 (σ_min), σ falls linearly to 0."""
        if not 0 <= t <= self.T:
            raise ValueError(f"t must lie in 0..{self.T} (the schedule's levels), got {t}.")
        low = self.training.low
        if t < 1:
            return self.level(t, 1.0, t * low)
        u = torch.tensor((t - 1) / (self.T - 1), dtype=torch.float64)
        return self.level(t, 1.0, float(self.training.quantile(u)))

    def at_sigma(self, sigma: float) -> Level:
        """The level with this σ, which may exceed σ_max."""
        low = self.training.low
        t = sigma / low if sigma < low else 1 + (self.T - 1) * self.training.fraction(sigma)
        return self.level(t, 1.0, sigma)

    def sigmas(self, n: int, grid: SigmaGrid = "karras") -> list[float]:
        """n values of σ from σ_max down to σ_min; one value is σ_max.

        Args:
            n: the number of values.
            grid: `karras` (σ^(1/ρ) is linear), `exponential` (log σ is linear) or `uniform` (σ is linear).
        """
        one_of("grid", grid, SIGMA_GRIDS)
        low, high = self.training.low, self.training.high
        ramp = torch.linspace(0, 1, n, dtype=torch.float64)
        if grid == "exponential":
            return (math.log(high) + ramp * (math.log(low) - math.log(high))).exp().tolist()
        rho = 1.0 if grid == "uniform" else self.rho
        return ((high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho).tolist()
