"""What samplers share: the levels that they step between, the rows of their tables, and their registry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, cast, get_args

from ..core.registry import Registry
from ..core.validation import one_of, require_positive_int
from .clipping import Threshold, bounds
from .edm import SIGMA_GRIDS, SigmaGrid, VarianceExploding
from .makers import Maker, register_in
from .schedule import Level, Schedule
from .steps import Steps, Transition

Spacing = Literal["leading", "trailing", "linspace"]
SPACINGS: tuple[Spacing, ...] = get_args(Spacing)
AnySpacing = Spacing | SigmaGrid | None
Clip = float | tuple[float, float] | Threshold | None
Jump = tuple[Level, Level]  # a step from one level to another
Grid = int | Sequence[float] | Sequence[Jump] | None

SAMPLERS: Registry[Maker[Steps]] = Registry("sampler")
register_sampler = register_in(SAMPLERS)


class Row(NamedTuple):
    """The coefficients of a step between two levels; see `steps.Step`."""

    A: float
    B: tuple[float, ...]
    c: float = 0.0
    raw: float = 0.0


def grid(
    schedule: Schedule, n: int | Sequence[float] | None = None, spacing: Spacing = "trailing", offset: int = 0
) -> list[float]:
    """The indices t at which the network is called, decreasing from T or below.

    >>> flare.samplers.grid(flare.schedules.cosine(600), 4)
    [600.0, 450.0, 300.0, 150.0]

    Args:
        schedule: the schedule whose levels to walk down.
        n: the number of steps; None takes every level; a decreasing sequence of t's is used as is.
        spacing: how n levels are spaced, by the names and rules of diffusers: `leading` (multiples of
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
        raise ValueError(
            f"the number of steps must be at most {T}, the number of levels of the schedule, got {n}."
        )
    one_of("spacing", spacing, SPACINGS)
    nearest = (lambda t: t) if schedule.continuous else round
    if n > T and spacing != "trailing":
        raise ValueError(f"spacing={spacing!r} allows at most {T} steps, got {n}; use 'trailing'.")
    if spacing == "leading":
        return [1.0 + offset + i * (T // n) for i in reversed(range(n))]
    if spacing == "trailing":
        return [float(nearest(T - i * (T / n))) for i in range(n)]
    # rounded from 0, as diffusers counts: halves go to the even number
    return [1.0 + nearest(i * (T - 1) / max(1, n - 1)) for i in reversed(range(n))]


def find_jumps(schedule: Schedule, n: Grid, spacing: AnySpacing, offset: int = 0) -> list[Jump]:
    """The steps from level to level down to data; pairs of levels are used as they are.

    Without a spacing, a number of steps means `karras` on an EDM schedule and `trailing` on all others.
    """
    if isinstance(n, Sequence) and n and isinstance(n[0], tuple):
        return [cast("Jump", jump) for jump in n]
    if spacing is not None:
        one_of("spacing", spacing, (*SPACINGS, *SIGMA_GRIDS))
    counted = n is None or hasattr(n, "__index__")
    if isinstance(schedule, VarianceExploding) and counted and (spacing is None or spacing in SIGMA_GRIDS):
        count = schedule.T if n is None else require_positive_int("the number of steps", cast("int", n))
        sigmas = schedule.sigmas(count, spacing or "karras")
        return list(pairwise([*(schedule.at_sigma(sigma) for sigma in sigmas), schedule.at(0)]))
    if spacing in SIGMA_GRIDS:
        raise ValueError(
            f"spacing={spacing!r} is a grid of an EDM schedule for a number of steps, got {schedule!r} and "
            f"{n!r}; use schedules.edm(), or one of {', '.join(SPACINGS)}."
        )
    levels = grid(
        schedule, cast("int | Sequence[float] | None", n), cast("Spacing", spacing or "trailing"), offset
    )
    return list(pairwise(schedule.at(t) for t in [*levels, 0]))


def tabulate(name: str, schedule: Schedule, jumps: Sequence[Jump], rows: Sequence[Row], clip: Clip) -> Steps:
    """The table with one row per jump, which calls the network at the level that it leaves."""
    limit = clip if isinstance(clip, Threshold) else bounds(clip)
    transitions = (
        Transition(here, row.A, row.B, row.c, limit, row.raw)
        for (here, _), row in zip(jumps, rows, strict=True)
    )
    start = jumps[0][0].sigma if schedule.variance_exploding else 1.0
    return Steps(name, schedule, tuple(transitions), start)
