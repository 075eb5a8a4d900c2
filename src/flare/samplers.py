"""Samplers as tables: one row a step drives sampling and, later, the propagation of uncertainty.

Every sampler here is affine in the state and in the predicted clean samples:

    x̂0 = clip(p·x + q·f(x, t))          x' = A·x + Σ_j B[j]·x̂0_{k−j} + c·z

so a new sampler is a function that returns rows, never a loop. The coefficients A, B, c come from the
levels (α, σ) that a step goes between; p and q come from what the network predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from torch import Tensor

from .checks import one_of, positive_int
from .parameterizations import coefficients
from .schedules import Level, Schedule

SPACINGS = ("leading", "trailing", "linspace")
Clip = float | tuple[float, float] | None
Grid = int | Sequence[float] | None
Row = tuple[float, tuple[float, ...], float]  # A, B, c


@dataclass(frozen=True)
class Step:
    """One row, ready to run: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + c·z."""

    time: int | float
    p: float
    q: float
    A: float
    B: tuple[float, ...]
    c: float
    clip: tuple[float, float] | None

    def clean(self, x: Tensor, f: Tensor) -> Tensor:
        """The predicted clean sample before clipping, p·x + q·f."""
        return self.q * f if self.p == 0 else (self.p * x).add_(f, alpha=self.q)

    def inside(self, clean: Tensor) -> Tensor | None:
        """Where clipping leaves the clean sample alone; None if nothing is clipped."""
        if self.clip is None:
            return None
        low, high = self.clip
        return (clean > low) & (clean < high)

    def advance(self, x: Tensor, predictions: Sequence[Tensor], z: Tensor | None = None) -> Tensor:
        """A·x + Σ_j B[j]·x̂0_{k−j} + c·z, with the predictions newest first."""
        out = self.A * x
        for weight, prediction in zip(self.B, predictions, strict=False):
            out.add_(prediction, alpha=weight)
        return out if z is None else out.add_(z, alpha=self.c)


@dataclass(frozen=True)
class Transition:
    """A step between two levels, before it is known what the network predicts."""

    level: Level
    A: float
    B: tuple[float, ...]
    c: float
    clip: tuple[float, float] | None


@dataclass(frozen=True)
class Steps:
    """The table of a sampler: `len(steps)` network calls, first the noisiest."""

    name: str
    schedule: Schedule
    transitions: tuple[Transition, ...]

    def rows(self, prediction: str) -> list[Step]:
        """The rows for a network that predicts epsilon, sample, v or flow."""
        return [
            Step(s.level.time, *coefficients(prediction, s.level.alpha, s.level.sigma), s.A, s.B, s.c, s.clip)
            for s in self.transitions
        ]

    @property
    def order(self) -> int:
        """How many predictions a step looks back on: 1 for one-step samplers."""
        return max(len(s.B) for s in self.transitions)

    def __len__(self) -> int:
        return len(self.transitions)

    def __repr__(self) -> str:
        return f"Steps({self.name}, {len(self)} steps)"


def grid(schedule: Schedule, n: Grid = None, spacing: str = "trailing", offset: int = 0) -> list[float]:
    """The indices t (T or below, falling) at which the network is called.

    Args:
        schedule: whose levels to walk down.
        n: how many steps; None takes every level; a falling sequence of t's is taken as it is.
        spacing: where n levels lie, by the names and rules of diffusers: `leading` (multiples of
            T // n, from the bottom), `trailing` (from T down by T/n), `linspace` (T to 1, both ends).
        offset: added to the levels of `leading` (diffusers' `steps_offset`).
    """
    T = schedule.T
    if n is None:
        return [float(t) for t in range(T, 0, -1)]
    if not hasattr(n, "__index__"):
        levels = [float(t) for t in n]
        falling = all(a > b for a, b in pairwise([T + 1, *levels, 0]))
        if not levels or not falling:
            raise ValueError(f"a list of levels must fall strictly within {T}..1, got {levels}.")
        return levels
    n = positive_int("the number of steps", cast("int", n))
    if n > T and not schedule.continuous:
        raise ValueError(f"{n} steps were asked of a schedule with {T} levels; ask for at most {T}.")
    one_of("spacing", spacing, SPACINGS)
    nearest = (lambda t: t) if schedule.continuous else round
    if n > T and spacing != "trailing":
        raise ValueError(f"spacing={spacing!r} has at most {T} levels, {n} were asked for; use 'trailing'.")
    if spacing == "leading":
        return [1.0 + offset + i * (T // n) for i in reversed(range(n))]
    if spacing == "trailing":
        return [float(nearest(T - i * (T / n))) for i in range(n)]
    # rounded from 0, as diffusers counts: halves go to the even number
    return [1.0 + nearest(i * (T - 1) / max(1, n - 1)) for i in reversed(range(n))]


def ddpm(
    schedule: Schedule,
    n: Grid = None,
    *,
    clip: Clip = None,
    spacing: str = "trailing",
    offset: int = 0,
    variance: str = "small",
) -> Steps:
    """Ancestral sampling, x' ~ q(x' | x, x̂0).

    A = √α_t·(1−ᾱ')/(1−ᾱ), B = √ᾱ'·β_t/(1−ᾱ), c² = β̃_t = (1−ᾱ')/(1−ᾱ)·β_t, where ᾱ' is ᾱ at the
    step's target and α_t = 1−β_t = ᾱ/ᾱ'.

    Args:
        schedule: a variance-preserving schedule.
        n: the number of steps or a list of levels; None walks every level (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, or None.
        spacing: see `grid`.
        offset: see `grid`.
        variance: `small` for c² = β̃_t, `large` for c² = β_t (0 at the last step, as ever).
    """
    one_of("variance", variance, ("small", "large"))
    _needs_variance_preserving("ddpm", schedule)

    def row(here: Level, there: Level) -> Row:
        ratio = (here.alpha / there.alpha) ** 2  # 1 − β_t
        beta = 1 - ratio
        shrink = (there.sigma / here.sigma) ** 2
        noise = shrink * beta if variance == "small" or there.sigma == 0 else beta
        return ratio**0.5 * shrink, (there.alpha * beta / here.sigma**2,), noise**0.5

    return _steps("ddpm", schedule, grid(schedule, n, spacing, offset), row, clip)


def ddim(
    schedule: Schedule,
    n: Grid = None,
    eta: float = 0.0,
    *,
    clip: Clip = None,
    spacing: str = "trailing",
    offset: int = 0,
) -> Steps:
    """DDIM: c = η·√β̃_t, A = √(σ'²−c²)/σ, B = α' − A·α.

    Where x̂0 is clipped, the noise direction follows the clipped x̂0 (`use_clipped_model_output` in
    diffusers), so that the step stays a function of x and x̂0.

    Args:
        schedule: any schedule with eta = 0, a variance-preserving one otherwise.
        n: the number of steps or a list of levels; None walks every level (see `grid`).
        eta: 0 is deterministic, 1 has DDPM's noise.
        clip: the range of x̂0: a number r for [−r, r], a pair, or None.
        spacing: see `grid`.
        offset: see `grid`.
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in [0, 1], got {eta}.")
    if eta > 0:
        _needs_variance_preserving("ddim with eta > 0", schedule)

    def row(here: Level, there: Level) -> Row:
        # 1 − ᾱ/ᾱ' = β; eta = 0 needs no β, so that alpha' = 0 is no trouble to it
        beta = 1 - (here.alpha / there.alpha) ** 2 if eta else 0.0
        c = eta * (there.sigma / here.sigma) * beta**0.5
        A = (there.sigma**2 - c**2) ** 0.5 / here.sigma
        return A, (there.alpha - A * here.alpha,), c

    return _steps("ddim", schedule, grid(schedule, n, spacing, offset), row, clip)


def euler(
    schedule: Schedule, n: Grid = None, *, clip: Clip = None, spacing: str = "trailing", offset: int = 0
) -> Steps:
    """Euler's method for a flow: x' = x + (σ'−σ)·v with v = (x−x̂0)/σ, so A = σ'/σ and B = 1 − A.

    Args:
        schedule: `schedules.flow(T)`.
        n: the number of steps (any) or a list of levels; None takes T (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, or None.
        spacing: see `grid`.
        offset: see `grid`.
    """
    if not schedule.continuous:
        raise ValueError(f"euler needs a flow schedule, got {schedule!r}; use samplers.ddim instead.")

    def row(here: Level, there: Level) -> Row:
        A = there.sigma / here.sigma
        return A, (1 - A,), 0.0

    return _steps("euler", schedule, grid(schedule, n, spacing, offset), row, clip)


def dpmpp_2m(
    schedule: Schedule, n: Grid = 20, *, clip: Clip = None, spacing: str = "trailing", offset: int = 0
) -> Steps:
    """DPM-Solver++(2M), midpoint: DDIM's step with the prediction extrapolated from the last two.

    With λ = log(α/σ), h the step in λ and h' the step before it: the clean sample is
    x̂0_k + h/(2h')·(x̂0_k − x̂0_{k−1}). The first step and the step to data have order 1.

    Args:
        schedule: any schedule.
        n: the number of steps or a list of levels (see `grid`). As in diffusers, `leading` and
            `linspace` place n + 1 levels and leave out the lowest.
        clip: the range of x̂0: a number r for [−r, r], a pair, or None.
        spacing: see `grid`.
        offset: see `grid`.
    """
    extra = hasattr(n, "__index__") and spacing != "trailing"
    levels = grid(schedule, n + 1 if extra else n, spacing, offset)  # type: ignore[operator]
    before: Level | None = None

    def row(here: Level, there: Level) -> Row:
        nonlocal before
        A = there.sigma / here.sigma
        B = there.alpha - A * here.alpha
        last, before = before, here
        if last is None or there.sigma == 0:
            return A, (B,), 0.0
        w = _lambda_step(here, there) / (2 * _lambda_step(last, here))
        return A, (B * (1 + w), -B * w), 0.0

    return _steps("dpmpp_2m", schedule, levels[:-1] if extra else levels, row, clip)


SAMPLERS: dict[str, Callable[..., Steps]] = {"ddpm": ddpm, "ddim": ddim, "euler": euler, "dpmpp_2m": dpmpp_2m}


def _lambda_step(here: Level, there: Level) -> float:
    """log(α'/σ') − log(α/σ); infinite from pure noise."""
    if here.alpha == 0:
        return math.inf
    return math.log(there.alpha / there.sigma) - math.log(here.alpha / here.sigma)


def _steps(
    name: str,
    schedule: Schedule,
    levels: Sequence[float],
    row: Callable[[Level, Level], Row],
    clip: Clip,
) -> Steps:
    bounds = _bounds(clip)
    points = [schedule.at(t) for t in [*levels, 0]]
    return Steps(
        name,
        schedule,
        tuple(Transition(here, *row(here, there), bounds) for here, there in pairwise(points)),
    )


def _bounds(clip: Clip) -> tuple[float, float] | None:
    if clip is None:
        return None
    low, high = (-clip, clip) if isinstance(clip, (int, float)) else clip
    if not low < high:
        raise ValueError(
            f"clip must be a positive number r for [-r, r], or a pair (low, high), got {clip!r}."
        )
    return float(low), float(high)


def _needs_variance_preserving(what: str, schedule: Schedule) -> None:
    if not schedule.variance_preserving:
        raise ValueError(
            f"{what} needs a variance-preserving schedule, got {schedule!r}; "
            "use samplers.euler or samplers.ddim with eta=0."
        )
