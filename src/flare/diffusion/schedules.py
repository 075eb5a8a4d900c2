"""Noise schedules: the tables of α_t and σ_t in x_t = α_t x_0 + σ_t ε.

A schedule has T noise levels, t = 1..T, and t = 0 is data. Tables are float64: at t = T of a cosine
schedule 1/α is about 1e4, and float32 tables lose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.validation import one_of, require_positive_int

MOST = 1_000_000  # levels of a schedule that is read from a file
SUMMARIZED = 17  # levels of a discrete schedule that are kept to recognize it


@dataclass(frozen=True)
class Level:
    """One noise level: x = alpha·x_0 + sigma·ε; `time` is what the network receives there."""

    time: int | float
    alpha: float
    sigma: float


@dataclass(frozen=True, eq=False)
class Schedule:
    """The tables of a schedule, indexed by t = 0..T (t = 0 is data).

    Attributes:
        alpha: α_t, (T+1,) float64, with α_0 = 1.
        sigma: σ_t, (T+1,) float64, with σ_0 = 0.
        times: what the network receives at t, (T+1,): t − 1 for discrete schedules, s·time_scale
            for flow matching.
        continuous: whether levels between the entries of the table exist (flow matching).
        spec: a JSON description from which `build` makes the same schedule again.
    """

    alpha: Tensor
    sigma: Tensor
    times: Tensor
    continuous: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def T(self) -> int:
        """The number of noise levels."""
        return len(self.alpha) - 1

    @property
    def variance_preserving(self) -> bool:
        """Whether α² + σ² = 1 at every level."""
        return bool(torch.allclose(self.alpha**2 + self.sigma**2, torch.ones_like(self.alpha)))

    @property
    def log_snr(self) -> Tensor:
        """log(α_t²/σ_t²) for t = 1..T, (T,)."""
        return 2 * (self.alpha[1:].log() - self.sigma[1:].log())

    def at(self, t: float) -> Level:
        """The level at index t in 0..T; fractions only where the schedule is continuous."""
        if not 0 <= t <= self.T:
            raise ValueError(f"t must lie in 0..{self.T} (the schedule's levels), got {t}.")
        low = math.floor(t)
        if not self.continuous:
            if low != t:
                raise ValueError(f"this schedule is discrete: t must be an integer, got {t}.")
            return Level(int(self.times[low]), float(self.alpha[low]), float(self.sigma[low]))
        # α, σ and the time of flow matching are linear in each other, so what is between is on the line.
        w, high = t - low, min(low + 1, self.T)
        tables = (self.times, self.alpha, self.sigma)
        return Level(*(float((1 - w) * table[low] + w * table[high]) for table in tables))

    def at_fraction(self, fraction: float) -> Level:
        """The level at a fraction of T in (0, 1]: the nearest of a discrete schedule, never t = 0."""
        if not 0 < fraction <= 1:
            raise ValueError(f"a level is a fraction of T in (0, 1], got {fraction}.")
        t = fraction * self.T
        return self.at(t if self.continuous else max(1, round(t)))

    def __repr__(self) -> str:
        return f"Schedule({self.spec.get('name', '?')}, T={self.T})"


@dataclass(frozen=True)
class Summary:
    """What tells a schedule from another: levels of its tables, and its name and T for people.

    Levels instead of a hash: another processor rounds the tables otherwise. The time, α and σ of a continuous
    schedule are linear in each other, so its two ends are all of it, whatever T.

    Attributes:
        name: of the schedule.
        T: its number of noise levels.
        continuous: whether levels between the entries of the table exist.
        alpha: α at a few levels from t = 0 to T.
        sigma: σ there.
        times: what the network receives there.
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
        count = 2 if schedule.continuous else min(SUMMARIZED, T + 1)
        rows = [round(i * T / (count - 1)) for i in range(count)]
        tables = (table[rows].tolist() for table in (schedule.alpha, schedule.sigma, schedule.times))
        return cls(str(schedule.spec.get("name", "unnamed")), T, schedule.continuous, *tables)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Summary:
        """The summary that a file holds as JSON."""
        alpha, sigma, times = ([float(v) for v in told[key]] for key in ("alpha", "sigma", "times"))
        if not len(alpha) == len(sigma) == len(times) > 1:
            raise ValueError(f"the tables of a schedule must be equally long, got {told!r}.")
        return cls(str(told["name"]), int(told["T"]), bool(told["continuous"]), alpha, sigma, times)

    def agrees(self, other: Summary) -> bool:
        """Whether both are the same function of t, whatever their names."""
        if self.continuous != other.continuous or not (self.continuous or self.T == other.T):
            return False
        ours, theirs = ([*s.alpha, *s.sigma, *s.times] for s in (self, other))
        return len(ours) == len(theirs) and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(ours, theirs, strict=True)
        )

    def __str__(self) -> str:
        middle = len(self.sigma) // 2
        return f"{self.name} with T = {self.T} (σ = {self.sigma[middle]:.4g} at t = {self.times[middle]:g})"


def from_alpha_bars(alpha_bars: Tensor | Sequence[float], **spec: Any) -> Schedule:
    """A variance-preserving schedule from ᾱ_1..ᾱ_T: α = √ᾱ, σ = √(1−ᾱ).

    Args:
        alpha_bars: (T,) values that fall strictly, within [0, 1).
        **spec: how the table was made, if not from these numbers (used by this module).
    """
    table = _table("alpha_bars", alpha_bars)
    if not (float(table[-1]) >= 0 and float(table[0]) < 1 and bool((table.diff() < 0).all())):
        raise ValueError(
            "alpha_bars must fall strictly and lie in [0, 1): "
            f"got {float(table[0]):.6g} … {float(table[-1]):.6g}."
        )
    full = torch.cat([torch.ones(1, dtype=torch.float64), table])
    times = torch.arange(-1, len(table), dtype=torch.float64)  # t − 1, as diffusers counts
    return Schedule(
        alpha=full.sqrt(),
        sigma=(1 - full).sqrt(),
        times=times,
        spec=spec or {"name": "from_alpha_bars", "alpha_bars": table.tolist()},
    )


def from_betas(betas: Tensor | Sequence[float], **spec: Any) -> Schedule:
    """A variance-preserving schedule from β_1..β_T: ᾱ_t = Π_{s≤t} (1−β_s)."""
    table = _table("betas", betas)
    if not bool(((table > 0) & (table <= 1)).all()):
        raise ValueError(
            f"betas must lie in (0, 1], got {float(table.min()):.6g} … {float(table.max()):.6g}."
        )
    spec = spec or {"name": "from_betas", "betas": table.tolist()}
    return from_alpha_bars((1 - table).cumprod(0), **spec)


def cosine(T: int, max_beta: float = 0.999) -> Schedule:
    """The cosine schedule: ᾱ(u) = cos²(π/2·(u+0.008)/1.008) at u = t/T, with β_t ≤ max_beta."""
    require_positive_int("T", T)
    u = torch.arange(T + 1, dtype=torch.float64) / T
    alpha_bar = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=max_beta)
    return from_betas(betas, name="cosine", T=T, max_beta=max_beta)


def linear(T: int, start: float = 1e-4, end: float = 0.02) -> Schedule:
    """β_t linear from `start` to `end`."""
    require_positive_int("T", T)
    betas = torch.linspace(start, end, T, dtype=torch.float64)
    return from_betas(betas, name="linear", T=T, start=start, end=end)


def scaled_linear(T: int, start: float = 0.00085, end: float = 0.012) -> Schedule:
    """√β_t linear from √start to √end, as latent diffusion models use it."""
    require_positive_int("T", T)
    betas = torch.linspace(start**0.5, end**0.5, T, dtype=torch.float64) ** 2
    return from_betas(betas, name="scaled_linear", T=T, start=start, end=end)


def flow(T: int, time_scale: float = 1.0, shift: float = 1.0) -> Schedule:
    """Flow matching (rectified flow): α = 1−s, σ = s; the network receives s·time_scale.

    Args:
        T: the number of levels, u = t/T.
        time_scale: what s is multiplied by for the network; 1000 for diffusers' flow models.
        shift: s = shift·u/(1 + (shift−1)·u); above 1, more of the levels are noisy ones.
    """
    require_positive_int("T", T)
    if not 0 < shift < math.inf:
        raise ValueError(f"shift must be positive, got {shift}.")
    if not math.isfinite(time_scale):
        raise ValueError(f"time_scale must be a finite number, got {time_scale}.")
    u = torch.arange(T + 1, dtype=torch.float64) / T
    s = shift * u / (1 + (shift - 1) * u)
    return Schedule(
        alpha=1 - s,
        sigma=s,
        times=s * time_scale,
        continuous=True,
        spec={"name": "flow", "T": T, "time_scale": time_scale} | ({"shift": shift} if shift != 1 else {}),
    )


_MAKERS: dict[str, Callable[..., Schedule]] = {
    make.__name__: make for make in (cosine, linear, scaled_linear, flow, from_betas, from_alpha_bars)
}


def build(spec: Mapping[str, Any]) -> Schedule:
    """Make a schedule from its description, e.g. `{"name": "cosine", "T": 600}`, of at most `MOST` levels."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"a schedule is described by name and arguments, got {spec!r}.")
    arguments = dict(spec)
    T = arguments.get("T", 1)
    if isinstance(T, int) and T > MOST:  # a file must not ask for tables without end
        raise ValueError(f"a schedule that is read has at most {MOST:,} levels, got T = {T}.")
    name = one_of("schedule", arguments.pop("name", ""), _MAKERS)
    try:
        return _MAKERS[name](**arguments)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"schedule {name!r} cannot be made from {arguments}: {error}.") from error


def _table(what: str, values: Tensor | Sequence[float]) -> Tensor:
    table = torch.as_tensor(values, dtype=torch.float64)
    if table.ndim != 1 or len(table) == 0:
        raise ValueError(f"{what} must be a non-empty list of numbers, got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise ValueError(f"{what} has NaN or infinity at t = {(~table.isfinite()).nonzero()[0].item() + 1}.")
    return table
