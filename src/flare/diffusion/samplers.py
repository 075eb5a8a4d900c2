"""Samplers as tables: one row a step drives sampling and, later, the propagation of uncertainty.

Every sampler here is affine in the state and in the predicted clean samples:

    x̂0 = clip(p·x + q·f(x, t))          x' = A·x + Σ_j B[j]·x̂0_{k−j} + c·z

so a new sampler is a function that returns rows, never a loop. The coefficients A, B, c come from the
levels (α, σ) that a step goes between; p and q come from what the network predicts. A step may also look
at the clean sample before it is clipped (`raw`), and learn the size of its noise (`noise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

from torch import Tensor

from ..core.validation import one_of, require_positive_int
from .clipping import Bounds, Threshold, bounds
from .parameterizations import coefficients
from .schedules import Level, Schedule

SPACINGS = ("leading", "trailing", "linspace")
Clip = float | tuple[float, float] | Threshold | None
Jump = tuple[Level, Level]  # a step from one level to another
Grid = int | Sequence[float] | Sequence[Jump] | None
Noise = Callable[[Tensor, Tensor, Any], Tensor]  # (x, t, cond) -> what c·z is multiplied by, like x


@dataclass(frozen=True)
class Step:
    """One row, ready to run: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(p·x + q·f) + c·z.

    Attributes:
        time: what the network receives.
        p: of x in the predicted clean sample.
        q: of f in it.
        A: of the state.
        B: of the clean samples, newest first.
        c: of the noise.
        clip: the range of x̂0, a `Threshold`, or None.
        raw: R, of the clean sample before it is clipped.
        noise: a factor of c·z that is learned: a function of (x, t, cond).
    """

    time: int | float
    p: float
    q: float
    A: float
    B: tuple[float, ...]
    c: float
    clip: Bounds | Threshold | None
    raw: float = 0.0
    noise: Noise | None = None

    @property
    def linear(self) -> tuple[float, float]:
        """(a, b) with x' = a·x + b·f + c·z, for a row of one term where nothing is clipped."""
        return self._linear(1.0)

    def linear_at(self, clean: Tensor) -> tuple[Any, Any]:
        """(a, b) of a row of one term with a range or none: δx' = a·δx + b·δf, (B, *shape) where it clips."""
        return self._linear(1.0 if self.clip is None else self._inside(clean))

    def _linear(self, inside: Any) -> tuple[Any, Any]:
        weight = self.B[0] * inside + self.raw
        return self.A + weight * self.p, weight * self.q

    def _inside(self, clean: Tensor) -> Tensor:
        """1 where a clean sample is within its range and 0 where it is clipped."""
        low, high = cast("Bounds", self.clip)
        return ((clean > low) & (clean < high)).to(clean.dtype)

    def clean(self, x: Tensor, f: Tensor) -> Tensor:
        """The predicted clean sample before clipping, p·x + q·f."""
        return self.q * f if self.p == 0 else (self.p * x).add_(f, alpha=self.q)

    def limit(self, clean: Tensor) -> Tensor:
        """x̂0 = clip(clean), (B, *shape)."""
        if self.clip is None:
            return clean
        return self.clip(clean) if isinstance(self.clip, Threshold) else clean.clamp(*self.clip)

    def limit_change(self, clean: Tensor, change: Tensor) -> Tensor:
        """δx̂0 (K, B, *shape) for a change of the clean sample (B, *shape): zero where it is clipped."""
        if self.clip is None:
            return change
        if isinstance(self.clip, Threshold):
            return self.clip.change(clean, change)
        return change * self._inside(clean)

    def advance(
        self, x: Tensor, predictions: Sequence[Tensor], z: Tensor | None = None, clean: Tensor | None = None
    ) -> Tensor:
        """A·x + Σ_j B[j]·x̂0_{k−j} + R·clean + c·z, with the predictions newest first."""
        out = self.A * x
        for weight, prediction in zip(self.B, predictions, strict=False):
            out.add_(prediction, alpha=weight)
        if self.raw and clean is not None:
            out.add_(clean, alpha=self.raw)
        return out if z is None else out.add_(z, alpha=self.c)


class Row(NamedTuple):
    """The coefficients of a step between two levels."""

    A: float
    B: tuple[float, ...]
    c: float = 0.0
    raw: float = 0.0


@dataclass(frozen=True)
class Transition:
    """A step between two levels, before it is known what the network predicts."""

    level: Level
    A: float
    B: tuple[float, ...]
    c: float
    clip: Bounds | Threshold | None
    raw: float = 0.0
    noise: Noise | None = None


@dataclass(frozen=True)
class Steps:
    """The table of a sampler: `len(steps)` network calls, first the noisiest.

    Attributes:
        name: of the sampler.
        schedule: whose levels it walks.
        transitions: the steps.
        start: x_T is this times standard normal noise.
    """

    name: str
    schedule: Schedule
    transitions: tuple[Transition, ...]
    start: float = 1.0

    def rows(self, prediction: str) -> list[Step]:
        """The rows for a network that predicts epsilon, sample, v or flow."""
        return [
            Step(
                s.level.time,
                *coefficients(prediction, s.level.alpha, s.level.sigma),
                A=s.A,
                B=s.B,
                c=s.c,
                clip=s.clip,
                raw=s.raw,
                noise=s.noise,
            )
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


def grid(
    schedule: Schedule, n: int | Sequence[float] | None = None, spacing: str = "trailing", offset: int = 0
) -> list[float]:
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
    n = require_positive_int("the number of steps", cast("int", n))
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
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between; None walks
            every level (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
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
        return Row(ratio**0.5 * shrink, (there.alpha * beta / here.sigma**2,), noise**0.5)

    return _steps("ddpm", schedule, _jumps(schedule, n, spacing, offset), row, clip)


def ddim(
    schedule: Schedule,
    n: Grid = None,
    eta: float = 0.0,
    *,
    clip: Clip = None,
    spacing: str = "trailing",
    offset: int = 0,
    use_clipped: bool = True,
) -> Steps:
    """DDIM: c = η·√β̃_t, A = √(σ'²−c²)/σ, B = α' − A·α.

    Where x̂0 is clipped, the noise direction follows the clipped x̂0; without `use_clipped` it stays that
    of the network's own answer: B = α', and R = −A·α goes with the clean sample before it is clipped.

    Args:
        schedule: any schedule with eta = 0, a variance-preserving one otherwise.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between; None walks
            every level (see `grid`).
        eta: 0 is deterministic, 1 has DDPM's noise.
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`.
        offset: see `grid`.
        use_clipped: whether the noise direction follows the clipped x̂0 (diffusers'
            `use_clipped_model_output`, which is off there by default).
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
        if use_clipped or clip is None:
            return Row(A, (there.alpha - A * here.alpha,), c)
        return Row(A, (there.alpha,), c, raw=-A * here.alpha)

    return _steps("ddim", schedule, _jumps(schedule, n, spacing, offset), row, clip)


def euler(
    schedule: Schedule, n: Grid = None, *, clip: Clip = None, spacing: str = "trailing", offset: int = 0
) -> Steps:
    """Euler's method for a flow: x' = x + (σ'−σ)·v with v = (x−x̂0)/σ, so A = σ'/σ and B = 1 − A.

    Args:
        schedule: `schedules.flow(T)`.
        n: the number of steps (any), a list of levels, or a list of pairs of `Level`s to step between; None
            takes T (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`.
        offset: see `grid`.
    """
    if not schedule.continuous:
        raise ValueError(f"euler needs a flow schedule, got {schedule!r}; use samplers.ddim instead.")

    def row(here: Level, there: Level) -> Row:
        A = there.sigma / here.sigma
        return Row(A, (1 - A,))

    return _steps("euler", schedule, _jumps(schedule, n, spacing, offset), row, clip)


def dpmpp_2m(
    schedule: Schedule,
    n: Grid = 20,
    *,
    clip: Clip = None,
    spacing: str = "trailing",
    offset: int = 0,
    first_order_last: bool = False,
) -> Steps:
    """DPM-Solver++(2M), midpoint: DDIM's step with the prediction extrapolated from the last two.

    With λ = log(α/σ), h the step in λ and h' the step before it: the clean sample is
    x̂0_k + h/(2h')·(x̂0_k − x̂0_{k−1}). The first step and the step to data have order 1.

    Args:
        schedule: any schedule.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between (see
            `grid`). As in diffusers, `leading` and `linspace` place n + 1 levels and leave out the lowest.
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`.
        offset: see `grid`.
        first_order_last: whether the last step has order 1 even if it does not end at data.
    """
    if hasattr(n, "__index__") and spacing != "trailing":
        n = grid(schedule, n + 1, spacing, offset)[:-1]  # type: ignore[operator]
    jumps = _jumps(schedule, n, spacing, offset)
    before: Level | None = None

    def row(here: Level, there: Level) -> Row:
        nonlocal before
        A = there.sigma / here.sigma
        B = there.alpha - A * here.alpha
        last, before = before, here
        if last is None or there.sigma == 0 or (first_order_last and there is jumps[-1][1]):
            return Row(A, (B,))
        w = _lambda_step(here, there) / (2 * _lambda_step(last, here))
        return Row(A, (B * (1 + w), -B * w))

    return _steps("dpmpp_2m", schedule, jumps, row, clip)


SAMPLERS: dict[str, Callable[..., Steps]] = {"ddpm": ddpm, "ddim": ddim, "euler": euler, "dpmpp_2m": dpmpp_2m}


def _lambda_step(here: Level, there: Level) -> float:
    """log(α'/σ') − log(α/σ); infinite from pure noise."""
    if here.alpha == 0:
        return math.inf
    return math.log(there.alpha / there.sigma) - math.log(here.alpha / here.sigma)


def _jumps(schedule: Schedule, n: Grid, spacing: str, offset: int) -> list[Jump]:
    """The steps from level to level down to data; pairs of levels are taken as they are."""
    if isinstance(n, Sequence) and n and isinstance(n[0], tuple):
        return [cast("Jump", jump) for jump in n]
    levels = grid(schedule, cast("int | Sequence[float] | None", n), spacing, offset)
    return list(pairwise(schedule.at(t) for t in [*levels, 0]))


def _steps(
    name: str, schedule: Schedule, jumps: Sequence[Jump], row: Callable[[Level, Level], Row], clip: Clip
) -> Steps:
    limit = clip if isinstance(clip, Threshold) else bounds(clip)
    rows = [(here, row(here, there)) for here, there in jumps]
    return Steps(name, schedule, tuple(Transition(here, r.A, r.B, r.c, limit, r.raw) for here, r in rows))


def _needs_variance_preserving(what: str, schedule: Schedule) -> None:
    if not schedule.variance_preserving:
        raise ValueError(
            f"{what} needs a variance-preserving schedule, got {schedule!r}; "
            "use samplers.euler or samplers.ddim with eta=0."
        )
