"""Solvers of the probability-flow ODE: Euler's and Heun's method, with the stochastic churn of EDM.

Along the ODE of flow matching and EDM, dx/dσ = (x − x̂0)/σ. Euler's step from σ to σ' is

    x_p = (σ'/σ)·x + (1 − σ'/σ)·x̂0

so that x_p − x̂0 = (σ'/σ)·(x − x̂0): the slope at the start of the step is also (x_p − x̂0)/σ'. With x̂0' the
prediction at (x_p, σ'), Heun's step with the mean of both slopes is therefore

    x' = x + (σ'−σ)/2·((x − x̂0)/σ + (x_p − x̂0')/σ') = x_p + w·(x̂0 − x̂0'),   w = (σ'−σ)/(2σ')

a second row, with the last two predictions as a multistep sampler has: no row refers to an earlier state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .edm import VarianceExploding
from .rows import AnySpacing, Clip, Grid, Jump, Row, find_jumps, register_sampler, tabulate
from .schedule import Level, Schedule
from .steps import Steps

_MOST = math.sqrt(2) - 1  # the largest γ of EDM's Algorithm 2


@dataclass(frozen=True)
class Churn:
    """Noise that is added before a step and removed by it: Algorithm 2 of EDM.

    Before each of n steps from σ in [low, high], σ is raised to σ̂ = (1+γ)·σ, γ = min(amount/n, √2 − 1),
    by noise of the standard deviation noise·√(σ̂² − σ²).

    Attributes:
        amount: S_churn.
        low: S_tmin.
        high: S_tmax.
        noise: S_noise.
    """

    amount: float
    low: float = 0.0
    high: float = math.inf
    noise: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.amount < math.inf and 0 <= self.low <= self.high and 0 <= self.noise < math.inf):
            raise ValueError(
                "churn needs amount ≥ 0, 0 ≤ low ≤ high and noise ≥ 0, for instance "
                f"Churn(40, low=0.05, high=50, noise=1.003), got {self}."
            )

    def lift(self, sigma: float, n: int) -> float:
        """σ̂."""
        gamma = min(self.amount / n, _MOST) if self.low <= sigma <= self.high else 0.0
        return sigma * (1 + gamma)

    def deviation(self, sigma: float, lifted: float) -> float:
        """The standard deviation of the noise that takes σ to σ̂."""
        return self.noise * math.sqrt(max(0.0, lifted**2 - sigma**2))


@register_sampler
def euler(
    schedule: Schedule,
    n: Grid = None,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
    churn: Churn | None = None,
) -> Steps:
    """Euler's method for a flow or EDM: x' = x + (σ'−σ)·v with v = (x−x̂0)/σ, so A = σ'/σ and B = 1 − A.

    >>> len(flare.samplers.euler(flare.schedules.flow(100), 20))
    20

    Args:
        schedule: `schedules.flow(T)` or `schedules.edm()`.
        n: the number of steps (any), a list of levels, or a list of pairs of `Level`s to step between; None
            takes T (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`; on an EDM schedule `karras` (the default), `exponential` or `uniform` in σ.
        offset: see `grid`.
        churn: noise that is added before each step, for EDM.
    """
    if not schedule.continuous:
        raise ValueError(
            f"euler needs a flow schedule or schedules.edm(), got {schedule!r}; use samplers.ddim instead."
        )
    jumps = find_jumps(schedule, n, spacing, offset)
    return _solve("euler", schedule, jumps, clip, churn, correct=False)


@register_sampler
def heun(
    schedule: Schedule,
    n: Grid = 18,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
    churn: Churn | None = None,
) -> Steps:
    """Heun's method, of second order: two network calls per step, and one for the step to data.

    On an EDM schedule this is Algorithm 1 of EDM, and Algorithm 2 with `churn`. A flow is solved in s, a
    variance-preserving schedule in x/α and σ/α, as diffusers' HeunDiscreteScheduler does.

    >>> len(flare.samplers.heun(flare.schedules.edm(), 9))  # calls of the network
    17

    Args:
        schedule: any schedule whose levels have α > 0, or a flow.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`; on an EDM schedule `karras` (the default), `exponential` or `uniform` in σ.
        offset: see `grid`.
        churn: noise that is added before each step, for EDM.
    """
    jumps = find_jumps(schedule, n, spacing, offset)
    if not schedule.continuous and jumps[0][0].alpha == 0:
        raise ValueError(
            f"heun cannot start at pure noise (alpha = 0), got {schedule!r}; use samplers.ddim, or a list of "
            "levels that starts lower."
        )
    return _solve("heun", schedule, jumps, clip, churn, correct=True)


def _solve(
    name: str, schedule: Schedule, jumps: Sequence[Jump], clip: Clip, churn: Churn | None, *, correct: bool
) -> Steps:
    """The table of Euler's steps, each with a second row that corrects it if asked for.

    A row adds its noise last, so the noise of `churn` before a step belongs to the row before it, and that
    before the first step to x_T.
    """
    levels, added = [here for here, _ in jumps], [0.0] * len(jumps)
    if churn is not None:
        if not isinstance(schedule, VarianceExploding):
            raise ValueError(f"churn needs schedules.edm(), got {schedule!r}; leave it out.")
        before, levels = levels, [schedule.at_sigma(churn.lift(here.sigma, len(jumps))) for here in levels]
        added = [churn.deviation(low.sigma, high.sigma) for low, high in zip(before, levels, strict=True)]
    calls: list[Jump] = []
    rows: list[Row] = []
    for here, (_, there), noise in zip(levels, jumps, [*added[1:], 0.0], strict=True):
        A = there.sigma / here.sigma
        calls.append((here, there))
        rows.append(Row(A, (1 - A if schedule.continuous else there.alpha - A * here.alpha,)))
        if correct and there.sigma > 0:
            w = _correction(schedule, here, there)
            calls.append((there, there))
            rows.append(Row(1.0, (-w, w)))
        rows[-1] = rows[-1]._replace(c=noise)
    steps = tabulate(name, schedule, calls, rows, clip)
    return steps if churn is None else replace(steps, start=math.hypot(jumps[0][0].sigma, added[0]))


def _correction(schedule: Schedule, here: Level, there: Level) -> float:
    """w of x' = x_p + w·(x̂0 − x̂0'), in x and σ of a flow or EDM, or in x/α and σ/α."""
    if schedule.continuous:
        return (1 - here.sigma / there.sigma) / 2
    return there.alpha * (1 - (here.sigma / here.alpha) / (there.sigma / there.alpha)) / 2
