"""Noise schedules: the tables of α_t and σ_t in x_t = α_t x_0 + σ_t ε.

Every schedule takes `time`, the name of the function of the noise level that the network receives (`TIMES`),
and `time_scale`, its factor. The default is t − 1 for discrete schedules, s for flow matching and σ for EDM.

A new schedule is a function that returns a `Schedule`, decorated with `register_schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.progress import warn
from ..core.registry import Registry
from ..core.validation import require_positive_int
from .levels import TIMES, Clock, Level, Schedule, Summary, TrainingLevels, VarianceExploding, register_time

__all__ = [
    "SCHEDULES",
    "TIMES",
    "Level",
    "Schedule",
    "Summary",
    "build",
    "cosine",
    "edm",
    "flow",
    "from_alpha_bars",
    "from_betas",
    "linear",
    "register_schedule",
    "register_time",
    "scaled_linear",
]

_LONG = 25  # levels of a schedule whose order says something
MAX_LEVELS = 1_000_000  # of a schedule that is read from a file

SCHEDULES: Registry[Callable[..., Schedule]] = Registry("schedule")
register_schedule = SCHEDULES.register


@register_schedule
def from_alpha_bars(
    alpha_bars: Tensor | Sequence[float], time: str = "index", time_scale: float = 1.0
) -> Schedule:
    """A variance-preserving schedule from ᾱ_1..ᾱ_T: α = √ᾱ, σ = √(1−ᾱ).

    >>> flare.schedules.from_alpha_bars([0.9, 0.5, 0.1]).T
    3

    Args:
        alpha_bars: (T,) strictly decreasing values in [0, 1).
        time: What the network receives, one of `TIMES`.
        time_scale: Factor of the time.
    """
    table = _table("alpha_bars", alpha_bars)
    spec = {"name": "from_alpha_bars", "alpha_bars": table.tolist()}
    return _preserve_variance(table, Clock(time, time_scale), spec)


@register_schedule
def from_betas(betas: Tensor | Sequence[float], time: str = "index", time_scale: float = 1.0) -> Schedule:
    """A variance-preserving schedule from β_1..β_T: ᾱ_t = Π_{s≤t} (1−β_s).

    >>> schedule = flare.schedules.from_betas(torch.linspace(1e-4, 0.02, 1000))
    >>> schedule.T
    1000

    Args:
        betas: (T,) values in (0, 1].
        time: What the network receives, one of `TIMES`.
        time_scale: Factor of the time.
    """
    table = _table("betas", betas)
    return _accumulate(table, Clock(time, time_scale), {"name": "from_betas", "betas": table.tolist()})


@register_schedule
def cosine(T: int, max_beta: float = 0.999, time: str = "index", time_scale: float = 1.0) -> Schedule:
    """The cosine schedule: ᾱ(u) = cos²(π/2·(u+0.008)/1.008) at u = t/T, with β_t ≤ max_beta.

    >>> flare.schedules.cosine(600)
    Schedule(cosine, T=600)
    """
    require_positive_int("T", T)
    u = torch.arange(T + 1, dtype=torch.float64) / T
    alpha_bar = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=max_beta)
    return _accumulate(betas, Clock(time, time_scale), {"name": "cosine", "T": T, "max_beta": max_beta})


@register_schedule
def linear(
    T: int, start: float = 1e-4, end: float = 0.02, time: str = "index", time_scale: float = 1.0
) -> Schedule:
    """The linear schedule: β_t rises linearly from `start` to `end`.

    >>> flare.schedules.linear(1000)
    Schedule(linear, T=1000)
    """
    require_positive_int("T", T)
    betas = torch.linspace(start, end, T, dtype=torch.float64)
    return _accumulate(betas, Clock(time, time_scale), {"name": "linear", "T": T, "start": start, "end": end})


@register_schedule
def scaled_linear(
    T: int, start: float = 0.00085, end: float = 0.012, time: str = "index", time_scale: float = 1.0
) -> Schedule:
    """The schedule of latent diffusion models: √β_t rises linearly from √start to √end.

    >>> flare.schedules.scaled_linear(1000)
    Schedule(scaled_linear, T=1000)
    """
    require_positive_int("T", T)
    betas = torch.linspace(start**0.5, end**0.5, T, dtype=torch.float64) ** 2
    spec = {"name": "scaled_linear", "T": T, "start": start, "end": end}
    return _accumulate(betas, Clock(time, time_scale), spec)


@register_schedule
def flow(T: int, time_scale: float = 1.0, shift: float = 1.0, time: str = "sigma") -> Schedule:
    """Flow matching (rectified flow): α = 1−s, σ = s; the network receives s·time_scale.

    >>> level = flare.schedules.flow(100).at(25)
    >>> level.alpha, level.sigma
    (0.75, 0.25)

    Args:
        T: Number of noise levels, u = t/T.
        time_scale: Factor of s in the time that the network receives; 1000 for diffusers' flow models.
        shift: S = shift·u/(1 + (shift−1)·u); a shift above 1 puts more levels at high noise.
        time: What the network receives, one of `TIMES`; s by default.
    """
    require_positive_int("T", T)
    if not 0 < shift < math.inf:
        raise ValueError(f"shift must be positive, got {shift}.")
    t, clock = torch.arange(T + 1, dtype=torch.float64), Clock(time, time_scale)
    u = t / T
    s = shift * u / (1 + (shift - 1) * u)
    spec = {"name": "flow", "T": T, "time_scale": time_scale} | ({"shift": shift} if shift != 1 else {})
    return Schedule(
        alpha=1 - s,
        sigma=s,
        times=clock.read(t, T, 1 - s, s),
        continuous=True,
        spec=spec | clock.spec("sigma"),
        clock=None if time == "sigma" else clock,
    )


@register_schedule
def edm(
    sigma_min: float = 0.002,
    sigma_max: float = 80.0,
    rho: float = 7.0,
    *,
    T: int = 1000,
    training: Sequence[float] = (-1.2, 1.2),
    time: str = "sigma",
    time_scale: float = 1.0,
) -> Schedule:
    """EDM (variance exploding): α = 1, σ from sigma_min to sigma_max; the network receives σ·time_scale.

    The T levels are quantiles of the training distribution between sigma_min and sigma_max, so training pairs
    and the levels of scores (fractions of T) match the training of the model. Samplers use the grid of Karras
    et al. from sigma_max down to sigma_min.

    >>> schedule = flare.schedules.edm(sigma_min=0.002, sigma_max=80.0)
    >>> len(flare.samplers.heun(schedule, 18))
    35

    Args:
        sigma_min: Lowest noise level.
        sigma_max: Highest noise level, at which samples start.
        rho: ρ of the grid of the samplers: σ^(1/ρ) is linear in the step.
        T: Number of noise levels in the table.
        training: Mean and standard deviation of log σ in training.
        time: What the network receives, one of `TIMES`; σ by default.
        time_scale: Factor of the time.
    """
    if require_positive_int("T", T) < 2:
        raise ValueError("T must be at least 2 for edm: sigma_min and sigma_max are levels.")
    if not 0 < rho < math.inf:
        raise ValueError(f"rho must be positive, got {rho}.")
    levels = _check_training(sigma_min, sigma_max, training)
    t, clock = torch.arange(T + 1, dtype=torch.float64), Clock(time, time_scale)
    sigma = torch.cat([t[:1], levels.quantile((t[1:] - 1) / (T - 1))])
    alpha = torch.ones_like(sigma)
    spec = {"name": "edm", "T": T, "sigma_min": sigma_min, "sigma_max": sigma_max, "rho": rho}
    return VarianceExploding(
        alpha=alpha,
        sigma=sigma,
        times=clock.read(t, T, alpha, sigma),
        continuous=True,
        spec=spec | {"training": list(training)} | clock.spec("sigma"),
        clock=clock,
        training=levels,
        rho=rho,
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
    name = arguments.pop("name", "")
    make = SCHEDULES.find(name)
    try:
        return make(**arguments)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"schedule {name!r} cannot be made from {arguments}: {error}.") from error


def _check_training(low: float, high: float, training: Sequence[float]) -> TrainingLevels:
    if not 0 < low < high < math.inf:
        raise ValueError(
            f"sigma_min and sigma_max must be finite with 0 < sigma_min < sigma_max, got {low} and {high}."
        )
    if len(training) != 2 or not (math.isfinite(training[0]) and 0 < training[1] < math.inf):
        raise ValueError(
            "training must be a finite mean and a positive standard deviation of log σ, got "
            f"{tuple(training)}."
        )
    levels = TrainingLevels(low, high, *training)
    below, above = levels.ends
    if not above > below:
        raise ValueError(
            f"no training level lies in [{low}, {high}]: log σ has the mean {levels.mean} and the standard "
            f"deviation {levels.std}; give those of the model's training."
        )
    return levels


def _accumulate(betas: Tensor, clock: Clock, spec: Mapping[str, Any]) -> Schedule:
    """The schedule with these β_t."""
    if not bool(((betas > 0) & (betas <= 1)).all()):
        raise ValueError(
            f"betas must lie in (0, 1], got {float(betas.min()):.6g} … {float(betas.max()):.6g}."
        )
    first, last = float(betas[0]), float(betas[-1])
    if first > max(0.9, last):
        raise ValueError(
            f"betas must not fall from near 1, got {first:.6g} … {last:.6g}; for alpha bars (alphas_cumprod) "
            "use flare.schedules.from_alpha_bars(alpha_bars), for alphas from_betas(1 - alphas)."
        )
    if first > last and len(betas) >= _LONG and bool((betas.diff() <= 0).all()):
        warn(
            f"betas fall from {first:.6g} to {last:.6g}, but those of most models rise. Are they in the "
            "order of sampling? β_1, the first, is the step next to the data: pass betas.flip(0).",
            UserWarning,
        )
    return _preserve_variance((1 - betas).cumprod(0), clock, spec)


def _preserve_variance(alpha_bars: Tensor, clock: Clock, spec: Mapping[str, Any]) -> Schedule:
    """The schedule with these ᾱ_t: α = √ᾱ, σ = √(1−ᾱ)."""
    first, last = float(alpha_bars[0]), float(alpha_bars[-1])
    if not (last >= 0 and first < 1 and bool((alpha_bars.diff() < 0).all())):
        hint = "; for betas use flare.schedules.from_betas(betas)" if first < last else ""
        raise ValueError(
            f"alpha_bars must fall strictly and lie in [0, 1): got {first:.6g} … {last:.6g}{hint}."
        )
    full = torch.cat([torch.ones(1, dtype=torch.float64), alpha_bars])
    alpha, sigma, T = full.sqrt(), (1 - full).sqrt(), len(alpha_bars)
    times = clock.read(torch.arange(T + 1, dtype=torch.float64), T, alpha, sigma)
    return Schedule(alpha, sigma, times, spec={**spec, **clock.spec("index")})


def _table(what: str, values: Tensor | Sequence[float]) -> Tensor:
    table = torch.as_tensor(values, dtype=torch.float64)
    if table.ndim != 1 or len(table) == 0:
        raise ValueError(f"{what} must be a non-empty sequence of numbers, got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise ValueError(f"{what} has NaN or infinity at t = {(~table.isfinite()).nonzero()[0].item() + 1}.")
    return table
