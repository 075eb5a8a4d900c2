"""What a network receives as time: functions of the noise level, by name.

A schedule keeps the name of its function, so a file can store it. `register_time` adds a function; a program
that loads such a schedule registers it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.registry import Registry
from .makers import Maker, register_in

# (t, T, alpha, sigma) -> times; t, alpha and sigma are tables of the same length, in float64
TimeFunction = Callable[[Tensor, int, Tensor, Tensor], Tensor]

TIMES: Registry[Maker[Tensor]] = Registry("time")
register_time = register_in(TIMES)


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


@dataclass(frozen=True)
class Clock:
    """A time function and the factor of its values.

    Attributes:
        name: one of `TIMES`.
        scale: the factor, `time_scale`.
    """

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        TIMES.find(self.name)
        if not math.isfinite(self.scale):
            raise ValueError(f"time_scale must be a finite number, got {self.scale}.")

    def read(self, t: Tensor, T: int, alpha: Tensor, sigma: Tensor) -> Tensor:
        """The times at the levels (alpha, sigma) with the indices t, all of the same length."""
        times = TIMES[self.name](t, T, alpha, sigma)
        times = times if self.scale == 1 else times * self.scale
        if not bool(times.isfinite().all()):
            raise ValueError(
                f"time={self.name!r} is infinite at t = {t[~times.isfinite()][0]:g} (alpha = "
                f"{alpha[~times.isfinite()][0]:g}); use another time, or a schedule that ends in alpha > 0."
            )
        return times

    def spec(self, default: str) -> dict[str, str | float]:
        """What differs from the defaults, for the description of a schedule."""
        name = {} if self.name == default else {"time": self.name}
        return name | ({} if self.scale == 1 else {"time_scale": self.scale})
