"""Noise schedules: the tables of α_t and σ_t in x_t = α_t x_0 + σ_t ε.

A schedule has T noise levels, t = 1..T; t = 0 is data. Tables are float64: at t = T of a cosine schedule 1/α
is about 1e4, which float32 tables cannot represent accurately.

A new schedule is a function that returns a `Schedule`, decorated with `register_schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.registry import Registry
from ..core.validation import require_positive_int
from .makers import Maker, register_in

MAX_LEVELS = 1_000_000  # of a schedule that is read from a file
SUMMARY_LEVELS = 17  # levels of a discrete schedule that its summary keeps


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
        times: the times that the network receives, (T+1,): t − 1 for discrete schedules, s·time_scale
            for flow matching.
        continuous: whether there are levels between the entries of the table (flow matching).
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
        """The level at index t in 0..T; t must be an integer unless the schedule is continuous."""
        if not 0 <= t <= self.T:
            raise ValueError(f"t must lie in 0..{self.T} (the schedule's levels), got {t}.")
        low = math.floor(t)
        if not self.continuous:
            if low != t:
                raise ValueError(f"this schedule is discrete: t must be an integer, got {t}.")
            return Level(int(self.times[low]), float(self.alpha[low]), float(self.sigma[low]))
        # α, σ and the time of flow matching are linear in each other, so interpolation is exact
        w, high = t - low, min(low + 1, self.T)
        tables = (self.times, self.alpha, self.sigma)
        return Level(*(float((1 - w) * table[low] + w * table[high]) for table in tables))

    def at_fraction(self, fraction: float) -> Level:
        """The level at a fraction of T in (0, 1]; a discrete schedule takes the nearest t ≥ 1."""
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
    of a continuous schedule are linear in each other, so its two ends identify it, whatever T is.

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
        count = 2 if schedule.continuous else min(SUMMARY_LEVELS, T + 1)
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
        if self.continuous != other.continuous or not (self.continuous or self.T == other.T):
            return False
        ours, theirs = ([*s.alpha, *s.sigma, *s.times] for s in (self, other))
        return len(ours) == len(theirs) and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(ours, theirs, strict=True)
        )

    def __str__(self) -> str:
        middle = len(self.sigma) // 2
        return f"{self.name} with T = {self.T} (σ = {self.sigma[middle]:.4g} at t = {self.times[middle]:g})"


SCHEDULES: Registry[Maker[Schedule]] = Registry("schedule")
register_schedule = register_in(SCHEDULES)


@register_schedule
def from_alpha_bars(alpha_bars: Tensor | Sequence[float], **spec: Any) -> Schedule:
    """A variance-preserving schedule from ᾱ_1..ᾱ_T: α = √ᾱ, σ = √(1−ᾱ).

    >>> flare.schedules.from_alpha_bars([0.9, 0.5, 0.1]).T
    3

    Args:
        alpha_bars: (T,) strictly decreasing values in [0, 1).
        **spec: the description of the schedule, if it is not these numbers (used by this module).
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


@register_schedule
def from_betas(betas: Tensor | Sequence[float], **spec: Any) -> Schedule:
    """A variance-preserving schedule from β_1..β_T: ᾱ_t = Π_{s≤t} (1−β_s).

    >>> schedule = flare.schedules.from_betas(torch.linspace(1e-4, 0.02, 1000))
    >>> schedule.T
    1000
    """
    table = _table("betas", betas)
    if not bool(((table > 0) & (table <= 1)).all()):
        raise ValueError(
            f"betas must lie in (0, 1], got {float(table.min()):.6g} … {float(table.max()):.6g}."
        )
    spec = spec or {"name": "from_betas", "betas": table.tolist()}
    return from_alpha_bars((1 - table).cumprod(0), **spec)


@register_schedule
def cosine(T: int, max_beta: float = 0.999) -> Schedule:
    """The cosine schedule: ᾱ(u) = cos²(π/2·(u+0.008)/1.008) at u = t/T, with β_t ≤ max_beta.

    >>> flare.schedules.cosine(600)
    Schedule(cosine, T=600)
    """
    require_positive_int("T", T)
    u = torch.arange(T + 1, dtype=torch.float64) / T
    alpha_bar = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=max_beta)
    return from_betas(betas, name="cosine", T=T, max_beta=max_beta)


@register_schedule
def linear(T: int, start: float = 1e-4, end: float = 0.02) -> Schedule:
    """The linear schedule: β_t rises linearly from `start` to `end`.

    >>> flare.schedules.linear(1000)
    Schedule(linear, T=1000)
    """
    require_positive_int("T", T)
    betas = torch.linspace(start, end, T, dtype=torch.float64)
    return from_betas(betas, name="linear", T=T, start=start, end=end)


@register_schedule
def scaled_linear(T: int, start: float = 0.00085, end: float = 0.012) -> Schedule:
    """The schedule of latent diffusion models: √β_t rises linearly from √start to √end.

    >>> flare.schedules.scaled_linear(1000)
    Schedule(scaled_linear, T=1000)
    """
    require_positive_int("T", T)
    betas = torch.linspace(start**0.5, end**0.5, T, dtype=torch.float64) ** 2
    return from_betas(betas, name="scaled_linear", T=T, start=start, end=end)


@register_schedule
def flow(T: int, time_scale: float = 1.0, shift: float = 1.0) -> Schedule:
    """Flow matching (rectified flow): α = 1−s, σ = s; the network receives s·time_scale.

    >>> level = flare.schedules.flow(100).at(25)
    >>> level.alpha, level.sigma
    (0.75, 0.25)

    Args:
        T: the number of noise levels, u = t/T.
        time_scale: the factor of s in the time that the network receives; 1000 for diffusers' flow models.
        shift: s = shift·u/(1 + (shift−1)·u); a shift above 1 puts more levels at high noise.
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


def build(spec: Mapping[str, Any]) -> Schedule:
    """Make a schedule from its description, such as `{"name": "cosine", "T": 600}`.

    T is at most `MAX_LEVELS`.

    >>> flare.schedules.build({"name": "cosine", "T": 600}).T
    600
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"a schedule must be a mapping with a name and arguments, got {spec!r}.")
    arguments = dict(spec)
    T = arguments.get("T", 1)
    if isinstance(T, int) and T > MAX_LEVELS:  # descriptions come from files, which may be corrupt
        raise ValueError(f"a schedule from a file must have at most {MAX_LEVELS:,} levels, got T = {T}.")
    maker = SCHEDULES.find(arguments.pop("name", ""))
    try:
        return maker(**arguments)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"schedule {maker.name!r} cannot be made from {arguments}: {error}.") from error


def _table(what: str, values: Tensor | Sequence[float]) -> Tensor:
    table = torch.as_tensor(values, dtype=torch.float64)
    if table.ndim != 1 or len(table) == 0:
        raise ValueError(f"{what} must be a non-empty sequence of numbers, got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise ValueError(f"{what} has NaN or infinity at t = {(~table.isfinite()).nonzero()[0].item() + 1}.")
    return table
