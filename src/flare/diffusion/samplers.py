"""Samplers: functions that return tables of steps.

A sampler computes the coefficients A, B, R and c of each step from the two noise levels (α, σ) of the step:

    x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(x̂0_k before clipping) + c·z

A new sampler is a function (schedule, n, *, clip, ...) -> `Steps`, decorated with `register_sampler`. It
computes one row and needs no loop. `steps` explains the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, cast, get_args

from ..core.registry import Registry
from ..core.validation import one_of, require_positive_int
from .levels import Level, Schedule, VarianceExploding
from .steps import Clip, Noise, Step, Steps, Threshold, Transition, check_clip

__all__ = [
    "SAMPLERS",
    "Churn",
    "Clip",
    "Noise",
    "Step",
    "Steps",
    "Threshold",
    "Transition",
    "ddim",
    "ddpm",
    "ddpm_mean",
    "dpmpp_2m",
    "euler",
    "grid",
    "heun",
    "register_sampler",
]

Spacing = Literal["leading", "trailing", "linspace"]
SPACINGS: tuple[Spacing, ...] = get_args(Spacing)
Variance = Literal["small", "large", "none"]
#: the values of `Variance`
VARIANCES: tuple[Variance, ...] = get_args(Variance)
Jump = tuple[Level, Level]  # a step from one level to another
Grid = int | Sequence[float] | Sequence[Jump] | None
_LARGEST_GAMMA = math.sqrt(2) - 1  # of EDM's Algorithm 2

SAMPLERS: Registry[Callable[..., Steps]] = Registry("sampler")
register_sampler = SAMPLERS.register


@register_sampler
def ddpm(
    schedule: Schedule,
    n: Grid = None,
    *,
    clip: Clip = None,
    variance: Variance = "small",
) -> Steps:
    """Ancestral sampling, x' ~ q(x' | x, x̂0).

    A = √α_t·(1−ᾱ')/(1−ᾱ), B = √ᾱ'·β_t/(1−ᾱ), c² = β̃_t = (1−ᾱ')/(1−ᾱ)·β_t, where ᾱ' is ᾱ at the
    step's target and α_t = 1−β_t = ᾱ/ᾱ'.

    >>> len(flare.samplers.ddpm(schedule)), len(flare.samplers.ddpm(schedule, 50, clip=1.0))
    (600, 50)

    Args:
        schedule: A variance-preserving schedule.
        n: The number of steps, a list of levels, or a list of pairs of `Level`s to step between; None uses
            every level (see `grid`).
        clip: The range of x̂0: a number r for [−r, r], a pair, a `Threshold`, or None.
        variance: `small` for c² = β̃_t, `large` for c² = β_t, `none` for c = 0; the step to data has no noise.
    """
    one_of("variance", variance, VARIANCES)
    _require_variance_preserving("ddpm", schedule)

    def row(here: Level, there: Level) -> Transition:
        ratio = (here.alpha / there.alpha) ** 2  # 1 − β_t
        beta = 1 - ratio
        shrink = (there.sigma / here.sigma) ** 2
        small = shrink * beta
        noise = {"small": small, "large": beta if there.sigma else small, "none": 0.0}[variance]
        B = there.alpha * beta / here.sigma**2
        return Transition(level=here, A=ratio**0.5 * shrink, B=(B,), c=noise**0.5)

    rows = [row(*jump) for jump in _find_jumps(schedule, n)]
    return _tabulate("ddpm", schedule, rows, clip)


@register_sampler
def ddpm_mean(schedule: Schedule, n: Grid = None, *, clip: Clip = None) -> Steps:
    """DDPM without its noise, x' = E[x' | x, x̂0]: the sampler of the paper's Algorithm 1.

    >>> {row.c for row in flare.samplers.ddpm_mean(schedule, 50).rows("epsilon")}
    {0.0}

    Args:
        schedule: A variance-preserving schedule.
        n: The number of steps or the levels, see `ddpm`.
        clip: The range of x̂0, see `ddpm`; the paper does not clip.
    """
    steps = ddpm(schedule, n, clip=clip, variance="none")
    return replace(steps, name="ddpm_mean")


@register_sampler
def ddim(
    schedule: Schedule,
    n: Grid = None,
    eta: float = 0.0,
    *,
    clip: Clip = None,
    use_clipped: bool = True,
) -> Steps:
    """DDIM: c = η·√β̃_t, A = √(σ'²−c²)/σ, B = α' − A·α.

    Where x̂0 is clipped, the noise direction follows the clipped x̂0. Without `use_clipped` it follows the
    unclipped prediction: B = α', and R = −A·α multiplies the clean sample before clipping.

    >>> steps = flare.samplers.ddim(schedule, 50, clip=1.0)
    >>> flare.sample(denoiser, steps, n=4, shape=(10,)).samples.shape
    torch.Size([4, 10])

    Args:
        schedule: Any schedule if eta = 0, a variance-preserving one otherwise.
        n: The number of steps, a list of levels, or a list of pairs of `Level`s to step between; None uses
            every level (see `grid`).
        eta: 0 is deterministic, 1 has the noise of DDPM.
        clip: The range of x̂0: a number r for [−r, r], a pair, a `Threshold`, or None.
        use_clipped: Whether the noise direction follows the clipped x̂0 (diffusers'
            `use_clipped_model_output`, which is off there by default).
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in [0, 1], got {eta}.")
    if eta > 0:
        _require_variance_preserving("ddim with eta > 0", schedule)

    def row(here: Level, there: Level) -> Transition:
        # β = 1 − ᾱ/ᾱ' is not computed for eta = 0, where α' may be 0
        beta = 1 - (here.alpha / there.alpha) ** 2 if eta else 0.0
        c = eta * (there.sigma / here.sigma) * beta**0.5
        A = (there.sigma**2 - c**2) ** 0.5 / here.sigma
        if use_clipped or clip is None:
            return Transition(level=here, A=A, B=(there.alpha - A * here.alpha,), c=c)
        return Transition(level=here, A=A, B=(there.alpha,), c=c, raw=-A * here.alpha)

    rows = [row(*jump) for jump in _find_jumps(schedule, n)]
    return _tabulate("ddim", schedule, rows, clip)


@register_sampler
def dpmpp_2m(
    schedule: Schedule,
    n: Grid = 20,
    *,
    clip: Clip = None,
    first_order_last: bool = False,
) -> Steps:
    """DPM-Solver++(2M), midpoint: DDIM's step with x̂0 extrapolated from the last two predictions.

    With λ = log(α/σ), h the step in λ and h' the previous step, the clean sample is
    x̂0_k + h/(2h')·(x̂0_k − x̂0_{k−1}). The first step and the step to data have order 1.

    >>> [len(row.B) for row in flare.samplers.dpmpp_2m(schedule, 4).rows("epsilon")]
    [1, 2, 2, 1]

    Args:
        schedule: Any schedule.
        n: The number of steps, a list of levels, or a list of pairs of `Level`s to step between (see `grid`).
            For the levels of diffusers, give grid(schedule, n + 1, "leading")[:-1], or "linspace".
        clip: The range of x̂0: a number r for [−r, r], a pair, a `Threshold`, or None.
        first_order_last: Whether the last step has order 1 even if it does not end at data.
    """
    jumps = _find_jumps(schedule, n)
    before: list[Level | None] = [None, *(here for here, _ in jumps[:-1])]
    if first_order_last:
        before[-1] = None
    rows = [_second_order(last, here, there) for last, (here, there) in zip(before, jumps, strict=True)]
    return _tabulate("dpmpp_2m", schedule, rows, clip)


@dataclass(frozen=True)
class Churn:
    """Noise that is added before a step and removed by it: Algorithm 2 of EDM.

    Before each of n steps from σ in [low, high], σ is raised to σ̂ = (1+γ)·σ, γ = min(amount/n, √2 − 1),
    by adding noise with standard deviation noise·√(σ̂² − σ²).

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
        gamma = min(self.amount / n, _LARGEST_GAMMA) if self.low <= sigma <= self.high else 0.0
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
    churn: Churn | None = None,
) -> Steps:
    """Euler's method for a flow or EDM: x' = x + (σ'−σ)·v with v = (x−x̂0)/σ, so A = σ'/σ and B = 1 − A.

    >>> len(flare.samplers.euler(flare.schedules.flow(100), 20))
    20

    Args:
        schedule: `schedules.flow(T)` or `schedules.edm()`.
        n: The number of steps (any), a list of levels, or a list of pairs of `Level`s to step between; None
            takes T (see `grid`).
        clip: The range of x̂0: a number r for [−r, r], a pair, a `Threshold`, or None.
        churn: Noise that is added before each step, for EDM.
    """
    if not schedule.continuous:
        raise ValueError(
            f"euler needs a flow schedule or schedules.edm(), got {schedule!r}; use samplers.ddim instead."
        )
    jumps = _find_jumps(schedule, n)
    return _solve("euler", schedule, jumps, clip, churn, correct=False)


@register_sampler
def heun(
    schedule: Schedule,
    n: Grid = 18,
    *,
    clip: Clip = None,
    churn: Churn | None = None,
) -> Steps:
    """Heun's method, of second order: two network calls per step, and one for the step to data.

    On an EDM schedule this is Algorithm 1 of EDM, and Algorithm 2 with `churn`. A flow is solved in s, a
    variance-preserving schedule in x/α and σ/α, as diffusers' HeunDiscreteScheduler does.

    >>> len(flare.samplers.heun(flare.schedules.edm(), 9))  # calls of the network
    17

    Args:
        schedule: Any schedule whose levels have α > 0, or a flow.
        n: The number of steps, a list of levels, or a list of pairs of `Level`s to step between (see `grid`).
        clip: The range of x̂0: a number r for [−r, r], a pair, a `Threshold`, or None.
        churn: Noise that is added before each step, for EDM.
    """
    jumps = _find_jumps(schedule, n)
    if not schedule.continuous and jumps[0][0].alpha == 0:
        raise ValueError(
            f"heun cannot start at pure noise (alpha = 0), got {schedule!r}; use samplers.ddim, or a list of "
            "levels that starts lower."
        )
    return _solve("heun", schedule, jumps, clip, churn, correct=True)


def grid(
    schedule: Schedule, n: int | Sequence[float] | None = None, spacing: Spacing = "trailing"
) -> list[float]:
    """The indices t at which the network is called, decreasing from T or below.

    Samplers that are given a number of steps use `trailing`. For another spacing, give them these indices.

    >>> flare.samplers.grid(flare.schedules.cosine(600), 4)
    [600.0, 450.0, 300.0, 150.0]

    Args:
        schedule: The schedule that provides the levels.
        n: The number of steps; None takes every level; a decreasing sequence of t's is used as is.
        spacing: How n levels are spaced, by the names and rules of diffusers: `leading` (multiples of
            T // n, from the bottom), `trailing` (from T down by T/n), `linspace` (T to 1, both ends).
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
        raise ValueError(
            f"the number of steps must be at most {T}, the number of levels of the schedule, got {n}."
        )
    one_of("spacing", spacing, SPACINGS)
    if n > T and spacing != "trailing":
        raise ValueError(f"spacing={spacing!r} allows at most {T} steps, got {n}; use 'trailing'.")
    if spacing == "leading":
        return [1.0 + i * (T // n) for i in reversed(range(n))]
    nearest = (lambda t: t) if schedule.continuous else round  # halves go to the even number
    if spacing == "trailing":
        gap = T - (T - T / n)  # as numpy.arange has it, which diffusers calls
        return [float(nearest(T - i * gap)) for i in range(n)]
    gap = (T - 1) / max(1, n - 1)  # as numpy.linspace
    return [1.0 + nearest(i * gap) for i in reversed(range(n))]


def _find_jumps(schedule: Schedule, n: Grid) -> list[Jump]:
    """The steps from level to level down to data; pairs of levels are used unchanged.

    A number of steps means the grid of Karras et al. on an EDM schedule, and `trailing` on all others.
    """
    if isinstance(n, Sequence) and n and isinstance(n[0], tuple):
        return [cast("Jump", jump) for jump in n]
    if isinstance(schedule, VarianceExploding) and (n is None or hasattr(n, "__index__")):
        count = schedule.T if n is None else require_positive_int("the number of steps", cast("int", n))
        levels = [schedule.at_sigma(sigma) for sigma in schedule.sigmas(count)]
    else:
        levels = [schedule.at(t) for t in grid(schedule, cast("int | Sequence[float] | None", n))]
    return list(pairwise([*levels, schedule.at(0)]))


def _tabulate(name: str, schedule: Schedule, rows: Sequence[Transition], clip: Clip) -> Steps:
    """The table with these rows, all with the same clip."""
    limit = check_clip(clip)
    start = rows[0].level.sigma if schedule.variance_exploding else 1.0
    return Steps(name, schedule, tuple(replace(row, clip=limit) for row in rows), start)


def _solve(
    name: str, schedule: Schedule, jumps: Sequence[Jump], clip: Clip, churn: Churn | None, *, correct: bool
) -> Steps:
    """The table of Euler's method, or of Heun's, in which a second row corrects each step.

    Along the ODE of flow matching and EDM, dx/dσ = (x − x̂0)/σ. Euler's step from σ to σ' is

        x_p = (σ'/σ)·x + (1 − σ'/σ)·x̂0

    so that x_p − x̂0 = (σ'/σ)·(x − x̂0): the slope at the start of the step is also (x_p − x̂0)/σ'. With x̂0'
    the prediction at (x_p, σ'), Heun's step with the mean of both slopes is therefore

        x' = x + (σ'−σ)/2·((x − x̂0)/σ + (x_p − x̂0')/σ') = x_p + w·(x̂0 − x̂0'),   w = (σ'−σ)/(2σ')

    a second row, with the last two predictions, as a multistep sampler has: no row refers to an earlier
    state. On variance-preserving schedules, the ODE is solved in x/α and σ/α.

    A row adds its noise last, so the noise of `churn` before a step belongs to the row before it, and the
    noise before the first step to x_T.
    """
    levels, added = [here for here, _ in jumps], [0.0] * len(jumps)
    if churn is not None:
        if not isinstance(schedule, VarianceExploding):
            raise ValueError(f"churn needs schedules.edm(), got {schedule!r}; leave it out.")
        before, levels = levels, [schedule.at_sigma(churn.lift(here.sigma, len(jumps))) for here in levels]
        added = [churn.deviation(low.sigma, high.sigma) for low, high in zip(before, levels, strict=True)]
    rows: list[Transition] = []
    for here, (_, there), noise in zip(levels, jumps, [*added[1:], 0.0], strict=True):
        A = there.sigma / here.sigma
        B = 1 - A if schedule.continuous else there.alpha - A * here.alpha
        rows.append(Transition(level=here, A=A, B=(B,)))
        if correct and there.sigma > 0:
            if schedule.continuous:
                w = (1 - here.sigma / there.sigma) / 2
            else:
                w = there.alpha * (1 - (here.sigma / here.alpha) / (there.sigma / there.alpha)) / 2
            rows.append(Transition(level=there, A=1.0, B=(-w, w)))
        rows[-1] = replace(rows[-1], c=noise)
    steps = _tabulate(name, schedule, rows, clip)
    return steps if churn is None else replace(steps, start=math.hypot(jumps[0][0].sigma, added[0]))


def _second_order(last: Level | None, here: Level, there: Level) -> Transition:
    """The row after a step from `last` to `here`; of order 1 without `last`, or if it ends at data."""
    A = there.sigma / here.sigma
    B = there.alpha - A * here.alpha
    if last is None or there.sigma == 0:
        return Transition(level=here, A=A, B=(B,))
    w = _lambda_step(here, there) / (2 * _lambda_step(last, here))
    return Transition(level=here, A=A, B=(B * (1 + w), -B * w))


def _lambda_step(here: Level, there: Level) -> float:
    """log(α'/σ') − log(α/σ); infinite from pure noise."""
    if here.alpha == 0:
        return math.inf
    return math.log(there.alpha / there.sigma) - math.log(here.alpha / here.sigma)


def _require_variance_preserving(what: str, schedule: Schedule) -> None:
    if not schedule.variance_preserving:
        raise ValueError(
            f"{what} needs a variance-preserving schedule, got {schedule!r}; "
            "use samplers.euler or samplers.ddim with eta=0."
        )
