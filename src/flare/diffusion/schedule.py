"""A noise schedule: the tables of α_t, σ_t and the network's times, and how two schedules are compared.

A schedule has T noise levels, t = 1..T; t = 0 is data. Tables are float64: at t = T of a cosine schedule 1/α
is about 1e4, which float32 tables cannot represent accurately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .times import Clock

SUMMARY_LEVELS = 17  # levels of a schedule that its summary keeps


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
        times: the times that the network receives, (T+1,): by default t − 1 for discrete schedules, s for
            flow matching, σ for EDM.
        continuous: whether there are levels between the entries of the table (flow matching, EDM).
        spec: a JSON description from which `build` makes the same schedule again.
        clock: computes the times between the entries; None if they are linear there, as α and σ are.
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
        if not self.continuous:
            if low != t:
                raise ValueError(f"this schedule is discrete: t must be an integer, got {t}.")
            time = float(self.times[low])
            time = int(time) if self.integer_times else time
            return Level(time, float(self.alpha[low]), float(self.sigma[low]))
        # α, σ and the time of flow matching are linear in each other, so interpolation is exact
        w, high = t - low, min(low + 1, self.T)
        tables = (self.times, self.alpha, self.sigma)
        time, alpha, sigma = (float((1 - w) * table[low] + w * table[high]) for table in tables)
        return Level(time, alpha, sigma) if self.clock is None else self.level(t, alpha, sigma)

    def level(self, t: float, alpha: float, sigma: float) -> Level:
        """The level (alpha, sigma) with the time that the clock reads there."""
        assert self.clock is not None
        index, *tables = torch.tensor([[t], [alpha], [sigma]], dtype=torch.float64)
        return Level(float(self.clock.read(index, self.T, *tables)), alpha, sigma)

    def at_fraction(self, fraction: float) -> Level:
        """The level at a fraction of T in (0, 1]; a discrete schedule takes the nearest t ≥ 1.

        Models are trained on all t alike, so this is the level that is noisier than this fraction of the
        training levels, on every schedule.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"a level is a fraction of T in (0, 1], got {fraction}.")
        t = fraction * self.T
        return self.at(t if self.continuous else max(1, round(t)))

    def __repr__(self) -> str:
        return f"Schedule({self.spec.get('name', '?')}, T={self.T})"


@dataclass(frozen=True)
class Summary:
    """A few levels of a schedule, to recognize it, and its name and T, to print.

    Levels are compared, not a hash, because other processors round the tables differently. The time, α and σ
    of flow matching are linear in each other, so its two ends identify it, whatever T is.

    Attributes:
        name: the name of the schedule.
        T: its number of noise levels.
        continuous: whether there are levels between the entries of the table.
        alpha: α at a few levels from t = 0 to T.
        sigma: σ at these levels.
        times: the times that the network receives at these levels.
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
