"""Noise levels: the tables of α_t, σ_t and the network's times, and how two schedules are compared.

A schedule has T noise levels, t = 1..T; t = 0 is data. Tables are float64: at t = T of a cosine schedule 1/α
is about 1e4, which float32 tables cannot represent accurately.

The time that the network receives is a named function of the level, so a file can store it.
`register_time` adds a function; a program that loads such a schedule registers it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.registry import Registry
from ..core.validation import one_of

SUMMARY_LEVELS = 17  # levels of a schedule that its summary keeps
SigmaGrid = Literal["karras", "exponential", "uniform"]
SIGMA_GRIDS: tuple[SigmaGrid, ...] = get_args(SigmaGrid)

#: functions (t, T, alpha, sigma) -> times; t, alpha and sigma are tables of the same length, in float64
TIMES: Registry[Callable[..., Tensor]] = Registry("time")
register_time = TIMES.register


@register_time
def index(t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
    """t − 1, as diffusers counts: the integers 0..T−1 of a discrete schedule."""
    return t - 1


@register_time
def fraction(t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
    """t/T, in (0, 1]."""
    return t / T


@register_time
def sigma(t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
    """σ: s of flow matching, and the noise level of EDM."""
    return sigma


@register_time
def log_sigma(t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
    """log(σ/α)/4, the c_noise of EDM."""
    # no network is called at data, where the logarithm is infinite
    return torch.where(sigma > 0, (sigma / alpha).log() / 4, 0.0)


@register_time
def log_snr(t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
    """log(α²/σ²)."""
    return torch.where(sigma > 0, 2 * (alpha / sigma).log(), 0.0)


class Clock(NamedTuple):
    """A time function of `TIMES`, by name, and the factor of its values."""

    name: str
    scale: float = 1.0

    def read(self, t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
        """Compute the times at the levels (alpha, sigma) with the indices t, all of the same length."""
        if not math.isfinite(self.scale):
            raise ValueError(f"time_scale must be a finite number, got {self.scale}.")
        times = TIMES.find(self.name)(t, T, alpha, sigma)
        times = times if self.scale == 1 else times * self.scale
        if not bool(times.isfinite().all()):
            raise ValueError(
                f"time={self.name!r} is infinite at t = {t[~times.isfinite()][0]:g} (alpha = "
                f"{alpha[~times.isfinite()][0]:g}); use another time, or a schedule that ends in alpha > 0."
            )
        return times

    def spec(self, default: str) -> dict[str, str | float]:
        """The settings that differ from the defaults, for the description of a schedule."""
        name = {} if self.name == default else {"time": self.name}
        return name | ({} if self.scale == 1 else {"time_scale": self.scale})


@dataclass(frozen=True)
class Level:
    """One noise level: x = alpha·x_0 + sigma·ε; `time` is what the network receives there."""

    time: int | float
    alpha: float
    sigma: float


@dataclass(frozen=True, eq=False)
class Schedule:
    """The tables of a schedule, indexed by t = 0..T (t = 0 is data).

    >>> schedule = flare.schedules.cosine(600)
    >>> schedule.T, schedule.variance_preserving
    (600, True)
    >>> level = schedule.at(1)
    >>> round(level.alpha**2 + level.sigma**2, 6)
    1.0

    Attributes:
        alpha: α_t, (T+1,) float64, with α_0 = 1.
        sigma: σ_t, (T+1,) float64, with σ_0 = 0.
        times: The times that the network receives, (T+1,): by default t − 1 for discrete schedules, s for
            flow matching, σ for EDM.
        continuous: Whether there are levels between the entries of the table (flow matching, EDM).
        spec: A JSON description that `build` turns into the same schedule.
        clock: The function for times between the entries; None if they are linear there, as α and σ are.
    """

    alpha: Tensor
    sigma: Tensor
    times: Tensor
    continuous: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False)
    clock: Clock | None = None

    @property
    def T(self) -> int:
        """The number of noise levels."""
        return len(self.alpha) - 1

    @property
    def variance_preserving(self) -> bool:
        """Whether α² + σ² = 1 at every level."""
        return bool(torch.allclose(self.alpha**2 + self.sigma**2, torch.ones_like(self.alpha)))

    @property
    def variance_exploding(self) -> bool:
        """Whether α = 1 at every level."""
        return bool((self.alpha == 1).all())

    @cached_property
    def integer_times(self) -> bool:
        """Whether the network receives integers: a discrete schedule whose times are whole numbers."""
        return not self.continuous and bool((self.times == self.times.round()).all())

    @property
    def log_snr(self) -> Tensor:
        """log(α_t²/σ_t²) for t = 1..T, (T,)."""
        return 2 * (self.alpha[1:].log() - self.sigma[1:].log())

    def at(self, t: float) -> Level:
        """The level at index t in 0..T; t must be an integer unless the schedule is continuous."""
        if not 0 <= t <= self.T:
            raise ValueError(f"t must lie in 0..{self.T} (the schedule's levels), got {t}.")
        low = math.floor(t)
        if low != t and not self.continuous:
            raise ValueError(f"this schedule is discrete: t must be an integer, got {t}.")
        # α, σ and the time of flow matching are linear in each other, so interpolation is exact
        w, high = t - low, min(low + 1, self.T)
        tables = (self.times, self.alpha, self.sigma)
        time, alpha, sigma = (float((1 - w) * table[low] + w * table[high]) for table in tables)
        if self.clock is not None:
            return self.level(t, alpha, sigma)
        return Level(int(time) if self.integer_times else time, alpha, sigma)

    def level(self, t: float, alpha: float, sigma: float) -> Level:
        """The level (alpha, sigma) with its time."""
        assert self.clock is not None
        index, *tables = torch.tensor([[t], [alpha], [sigma]], dtype=torch.float64)
        return Level(float(self.clock.read(index, self.T, *tables)), alpha, sigma)

    def at_fraction(self, fraction: float) -> Level:
        """The level at a fraction of T in (0, 1]; a discrete schedule takes the nearest t ≥ 1.

        Training uses all t equally often, so this level is noisier than this fraction of the training levels,
        for every schedule.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"a level is a fraction of T in (0, 1], got {fraction}.")
        t = fraction * self.T
        return self.at(t if self.continuous else max(1, round(t)))

    def __repr__(self) -> str:
        return f"Schedule({self.spec.get('name', '?')}, T={self.T})"


class TrainingLevels(NamedTuple):
    """A normal distribution of log σ with this mean and standard deviation, truncated to [low, high] in σ."""

    low: float
    high: float
    mean: float
    std: float

    def cdf(self, sigma: Tensor) -> Tensor:
        """The distribution of σ before truncation."""
        return torch.special.ndtr((sigma.log() - self.mean) / self.std)

    @property
    def ends(self) -> list[float]:
        """The probabilities of σ below `low` and below `high`, before truncation."""
        return self.cdf(torch.tensor([self.low, self.high], dtype=torch.float64)).tolist()

    def quantile(self, u: Tensor) -> Tensor:
        """σ below which a fraction u of the training levels lies."""
        below, above = self.ends
        z = torch.special.ndtri(below + u * (above - below))
        inner = (self.mean + self.std * z).exp().clamp(self.low, self.high)
        return torch.where(u <= 0, self.low, torch.where(u >= 1, self.high, inner))

    def fraction(self, sigma: float) -> float:
        """The fraction of the training levels below σ: 0 up to σ_min, 1 above σ_max."""
        below, above = self.ends
        here = float(self.cdf(torch.tensor(sigma, dtype=torch.float64)))
        return min(1.0, max(0.0, (here - below) / (above - below)))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class VarianceExploding(Schedule):
    """The schedule of EDM (Karras et al. 2022): α = 1, and exact levels between the entries of the table.

    Networks are trained on log σ ~ N(mean, std²) and sampled on another grid, σ^(1/ρ) linear in the step. The
    levels t = 1..T are training levels: σ(t) is the quantile (t−1)/(T−1) of the training distribution
    between σ_min and σ_max. A uniform t is thus a training level, as for discrete schedules, and a fraction
    of T means the same for scores.

    Attributes:
        training: The distribution of the levels; σ(t) is a quantile of it.
        rho: Exponent ρ of the grid of Karras et al., the default grid of samplers.
    """

    training: TrainingLevels
    rho: float

    def at(self, t: float) -> Level:
        """The level at t in 0..T; below t = 1 (σ_min), σ falls linearly to 0."""
        if not 0 <= t <= self.T:
            raise ValueError(f"t must lie in 0..{self.T} (the schedule's levels), got {t}.")
        if t < 1:
            return self.level(t, 1.0, t * self.training.low)
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
            n: Number of values.
            grid: `karras` (σ^(1/ρ) is linear), `exponential` (log σ is linear) or `uniform` (σ is linear).
        """
        one_of("grid", grid, SIGMA_GRIDS)
        low, high = self.training.low, self.training.high
        ramp = torch.linspace(0, 1, n, dtype=torch.float64)
        if grid == "exponential":
            return (math.log(high) + ramp * (math.log(low) - math.log(high))).exp().tolist()
        rho = 1.0 if grid == "uniform" else self.rho
        return ((high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho).tolist()


@dataclass(frozen=True)
class Summary:
    """A few levels of a schedule, to compare it with others, and its name and T, to print it.

    Levels are compared, not a hash, because other processors round the tables differently. The time, α and σ
    of flow matching are linear in each other, so its two ends identify it, whatever T is.

    Attributes:
        name: The name of the schedule.
        T: Its number of noise levels.
        continuous: Whether there are levels between the entries of the table.
        alpha: α at a few levels from t = 0 to T.
        sigma: σ at these levels.
        times: The times that the network receives at these levels.
    """

    name: str
    T: int
    continuous: bool
    alpha: list[float]
    sigma: list[float]
    times: list[float]

    @classmethod
    def of(cls, schedule: Schedule) -> Summary:
        """The summary of a schedule."""
        T = schedule.T
        linear = schedule.continuous and schedule.clock is None
        count = 2 if linear else min(SUMMARY_LEVELS, T + 1)
        rows = [round(i * T / (count - 1)) for i in range(count)]
        tables = (table[rows].tolist() for table in (schedule.alpha, schedule.sigma, schedule.times))
        return cls(str(schedule.spec.get("name", "unnamed")), T, schedule.continuous, *tables)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Summary:
        """The summary from its JSON form in a file."""
        alpha, sigma, times = ([float(v) for v in stored[key]] for key in ("alpha", "sigma", "times"))
        if not len(alpha) == len(sigma) == len(times) > 1:
            raise ValueError(f"the tables of a schedule must have the same length, got {stored!r}.")
        return cls(str(stored["name"]), int(stored["T"]), bool(stored["continuous"]), alpha, sigma, times)

    def agrees(self, other: Summary) -> bool:
        """Whether both describe the same schedule, whatever their names."""
        by_ends = self.continuous and len(self.alpha) == 2
        if self.continuous != other.continuous or not (by_ends or self.T == other.T):
            return False
        ours, theirs = ([*s.alpha, *s.sigma, *s.times] for s in (self, other))
        return len(ours) == len(theirs) and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(ours, theirs, strict=True)
        )

    def __str__(self) -> str:
        middle = len(self.sigma) // 2
        return f"{self.name} with T = {self.T} (σ = {self.sigma[middle]:.4g} at t = {self.times[middle]:g})"
