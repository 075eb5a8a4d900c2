"""The options of sampling: their types, their defaults, and the choice of directions and levels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..core.defaults import DIRECTIONS
from ..core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ..core.validation import one_of, require_positive_int
from ..diffusion.schedules import Level, Schedule
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import Coefficients, Rule, RuleSpec
from ..propagation.observables import Observable

Directions = int | Literal["exact"] | Tensor
Levels = float | Sequence[float]
BatchSize = int | Literal["auto"]
Completed = TypeVar("Completed")
Function = TypeVar("Function", bound=Callable[..., Any])


class SampleOptions(TypedDict, total=False):
    """The keyword arguments of `flare.sample`, which explains them, and of `flare.trajectories`."""

    rule: str | Rule | RuleSpec
    coefficients: Coefficients
    directions: Directions
    score: str | Sequence[str] | None
    levels: Levels | None
    repeats: int | None
    covariance: bool
    observe: Observable | None
    derivative: str | Derivative
    start: Tensor | None
    noise: Callable[[], Tensor] | None
    cond: Cond | None
    unconditional: Cond | None
    seed: int
    first: int
    batch_size: BatchSize
    memory: int | None
    device: torch.device | str | None


@dataclass(frozen=True)
class Settings:
    """The options of one call, with defaults for those that were not given."""

    rule: str | Rule | RuleSpec = "tangent"
    coefficients: Coefficients = "main"
    directions: Directions = DIRECTIONS
    score: str | Sequence[str] | None = None
    levels: Levels | None = None
    repeats: int | None = None
    covariance: bool = False
    observe: Observable | None = None
    derivative: str | Derivative = Derivative.AUTO
    start: Tensor | None = None
    noise: Callable[[], Tensor] | None = None
    cond: Cond | None = None
    unconditional: Cond | None = None
    seed: int = 0
    first: int = 0
    batch_size: BatchSize = "auto"
    memory: int | None = None
    device: torch.device | str | None = None


def complete(settings: Callable[..., Completed], function: str, options: Mapping[str, Any]) -> Completed:
    """Make the settings of a call from its keyword arguments; refuse an unknown one with the nearest match.

    Args:
        settings: a dataclass with a default for every option.
        function: the name of the function that was called, for the message.
        options: the keyword arguments.
    """
    known = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    if unknown := [name for name in options if name not in known]:
        try:
            one_of(f"option of {function}", unknown[0], known)
        except ValueError as error:
            raise TypeError(str(error)) from None  # as Python does for an unknown keyword
    return settings(**options)


def show_options(settings: type) -> Callable[[Function], Function]:
    """Decorate a function that takes **options: its signature, as help and editors show it, lists them all.

    Args:
        settings: the dataclass that has them as fields.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
            for field in fields(settings)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def draw_directions(posterior: Posterior, directions: Directions, seed: int) -> Tensor:
    """Draw the directions that `sample` and `score` push through, (m, k)."""
    if isinstance(directions, Tensor):
        if directions.ndim != 2 or len(directions) != posterior.size:
            raise ValueError(
                f"directions must be a matrix of {posterior.size} rows, got shape {tuple(directions.shape)}."
            )
        return directions
    if directions == "exact":
        return posterior.exact_directions()
    if isinstance(directions, str):
        raise ValueError(f"directions must be a number or 'exact', got {directions!r}.")
    generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
    return posterior.directions(require_positive_int("directions", directions), generator)


def find_levels(schedule: Schedule, fractions: Levels) -> list[Level]:
    """Find the levels at some fractions of T, or at a single one."""
    given = [fractions] if isinstance(fractions, (int, float)) else list(fractions)
    if not given or not all(isinstance(fraction, (int, float)) for fraction in given):
        raise ValueError(f"give at least one level as a number, such as 0.1, got {fractions!r}.")
    return [schedule.at_fraction(fraction) for fraction in given]
