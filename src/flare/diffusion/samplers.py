"""Samplers: functions that return tables of steps.

A sampler computes the coefficients A, B, R and c of each step from the two noise levels (α, σ) of the step:

    x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(x̂0_k before clipping) + c·z

A new sampler is a function (schedule, n, *, clip, ...) -> `Steps`, decorated with `register_sampler`. It says
how to compute one `Row`, and needs no loop of its own. `steps` explains the table.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

from ..core.validation import one_of
from .edm import SIGMA_GRIDS, SigmaGrid
from .ode import Churn, euler, heun
from .rows import (
    SAMPLERS,
    SPACINGS,
    AnySpacing,
    Clip,
    Grid,
    Row,
    Spacing,
    find_jumps,
    grid,
    register_sampler,
    tabulate,
)
from .schedule import Level, Schedule
from .steps import Noise, Step, Steps, Transition

__all__ = [
    "SAMPLERS",
    "SIGMA_GRIDS",
    "SPACINGS",
    "VARIANCES",
    "Churn",
    "Clip",
    "Grid",
    "Noise",
    "SigmaGrid",
    "Spacing",
    "Step",
    "Steps",
    "Transition",
    "Variance",
    "ddim",
    "ddpm",
    "ddpm_mean",
    "dpmpp_2m",
    "euler",
    "grid",
    "heun",
    "register_sampler",
]

Variance = Literal["small", "large", "none"]
#: the values of `Variance`
VARIANCES: tuple[Variance, ...] = get_args(Variance)


@register_sampler
def ddpm(
    schedule: Schedule,
    n: Grid = None,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
    variance: Variance = "small",
) -> Steps:
    """Ancestral sampling, x' ~ q(x' | x, x̂0).

    A = √α_t·(1−ᾱ')/(1−ᾱ), B = √ᾱ'·β_t/(1−ᾱ), c² = β̃_t = (1−ᾱ')/(1−ᾱ)·β_t, where ᾱ' is ᾱ at the
    step's target and α_t = 1−β_t = ᾱ/ᾱ'.

    >>> len(flare.samplers.ddpm(schedule)), len(flare.samplers.ddpm(schedule, 50, clip=1.0))
    (600, 50)

    Args:
        schedule: a variance-preserving schedule.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between; None walks
            every level (see `grid`).
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: how n levels are spaced: see `grid`; on an EDM schedule `karras` (the default), `exponential`
            or `uniform` in σ.
        offset: see `grid`.
        variance: `small` for c² = β̃_t, `large` for c² = β_t, `none` for c = 0; the step to data has no noise.
    """
    one_of("variance", variance, VARIANCES)
    _require_variance_preserving("ddpm", schedule)

    def row(here: Level, there: Level) -> Row:
        ratio = (here.alpha / there.alpha) ** 2  # 1 − β_t
        beta = 1 - ratio
        shrink = (there.sigma / here.sigma) ** 2
        small = shrink * beta
        noise = {"small": small, "large": beta if there.sigma else small, "none": 0.0}[variance]
        return Row(ratio**0.5 * shrink, (there.alpha * beta / here.sigma**2,), noise**0.5)

    jumps = find_jumps(schedule, n, spacing, offset)
    return tabulate("ddpm", schedule, jumps, [row(*jump) for jump in jumps], clip)


@register_sampler
def ddpm_mean(
    schedule: Schedule,
    n: Grid = None,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
) -> Steps:
    """DDPM without its noise, x' = E[x' | x, x̂0]: the sampler of the paper's Algorithm 1.

    >>> {row.c for row in flare.samplers.ddpm_mean(schedule, 50).rows("epsilon")}
    {0.0}

    Args:
        schedule: a variance-preserving schedule.
        n: the number of steps or the levels, see `ddpm`.
        clip: the range of x̂0, see `ddpm`; the paper does not clip.
        spacing: see `grid`.
        offset: see `grid`.
    """
    steps = ddpm(schedule, n, clip=clip, spacing=spacing, offset=offset, variance="none")
    return replace(steps, name="ddpm_mean")


@register_sampler
def ddim(
    schedule: Schedule,
    n: Grid = None,
    eta: float = 0.0,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
    use_clipped: bool = True,
) -> Steps:
    """DDIM: c = η·√β̃_t, A = √(σ'²−c²)/σ, B = α' − A·α.

    Where x̂0 is clipped, the noise direction follows the clipped x̂0. Without `use_clipped` it follows the
    unclipped prediction: B = α', and R = −A·α multiplies the clean sample before clipping.

    >>> steps = flare.samplers.ddim(schedule, 50, clip=1.0)
    >>> flare.sample(denoiser, steps, n=4, shape=(10,)).samples.shape
    torch.Size([4, 10])

    Args:
        schedule: any schedule if eta = 0, a variance-preserving one otherwise.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between; None walks
            every level (see `grid`).
        eta: 0 is deterministic, 1 has the noise of DDPM.
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`.
        offset: see `grid`.
        use_clipped: whether the noise direction follows the clipped x̂0 (diffusers'
            `use_clipped_model_output`, which is off there by default).
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in [0, 1], got {eta}.")
    if eta > 0:
        _require_variance_preserving("ddim with eta > 0", schedule)

    def row(here: Level, there: Level) -> Row:
        # β = 1 − ᾱ/ᾱ' is not computed for eta = 0, where α' may be 0
        beta = 1 - (here.alpha / there.alpha) ** 2 if eta else 0.0
        c = eta * (there.sigma / here.sigma) * beta**0.5
        A = (there.sigma**2 - c**2) ** 0.5 / here.sigma
        if use_clipped or clip is None:
            return Row(A, (there.alpha - A * here.alpha,), c)
        return Row(A, (there.alpha,), c, raw=-A * here.alpha)

    jumps = find_jumps(schedule, n, spacing, offset)
    return tabulate("ddim", schedule, jumps, [row(*jump) for jump in jumps], clip)


@register_sampler
def dpmpp_2m(
    schedule: Schedule,
    n: Grid = 20,
    *,
    clip: Clip = None,
    spacing: AnySpacing = None,
    offset: int = 0,
    first_order_last: bool = False,
) -> Steps:
    """DPM-Solver++(2M), midpoint: DDIM's step with x̂0 extrapolated from the last two predictions.

    With λ = log(α/σ), h the step in λ and h' the previous step, the clean sample is
    x̂0_k + h/(2h')·(x̂0_k − x̂0_{k−1}). The first step and the step to data have order 1.

    >>> [len(row.B) for row in flare.samplers.dpmpp_2m(schedule, 4).rows("epsilon")]
    [1, 2, 2, 1]

    Args:
        schedule: any schedule.
        n: the number of steps, a list of levels, or a list of pairs of `Level`s to step between (see
            `grid`). As in diffusers, `leading` and `linspace` place n + 1 levels and drop the lowest.
        clip: the range of x̂0: a number r for [−r, r], a pair, a `clipping.Threshold`, or None.
        spacing: see `grid`.
        offset: see `grid`.
        first_order_last: whether the last step has order 1 even if it does not end at data.
    """
    if hasattr(n, "__index__") and spacing in ("leading", "linspace"):
        n = grid(schedule, n + 1, spacing, offset)[:-1]  # type: ignore[operator]
    jumps = find_jumps(schedule, n, spacing, offset)
    before: list[Level | None] = [None, *(here for here, _ in jumps[:-1])]
    if first_order_last:
        before[-1] = None
    rows = [_second_order(last, here, there) for last, (here, there) in zip(before, jumps, strict=True)]
    return tabulate("dpmpp_2m", schedule, jumps, rows, clip)


def _second_order(last: Level | None, here: Level, there: Level) -> Row:
    """The row after a step from `last` to `here`; it has order 1 if there is none, and if it ends at data."""
    A = there.sigma / here.sigma
    B = there.alpha - A * here.alpha
    if last is None or there.sigma == 0:
        return Row(A, (B,))
    w = _lambda_step(here, there) / (2 * _lambda_step(last, here))
    return Row(A, (B * (1 + w), -B * w))


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
