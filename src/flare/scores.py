"""Scores: one number per sample from its epistemic spread; the larger, the less to be trusted.

`trace` counts every way in which a sample could move. The others ask at low reference levels what the
denoiser makes of it: with x̂0(x) = p·x + q·f(x, t) taken at x = α·x_0, and δx_0 along each direction,

- off_manifold: Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖², only what the denoiser would undo;
- residual_variance: Σ_k ‖δx_0 − δx̂0‖², x_0 and θ moving together: the variance of r = x_0 − x̂0(α·x_0);
- expected_residual: ‖r‖² + Σ_k ‖δr‖² = E_θ ‖r‖², for a calibrated posterior;

each the mean over the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .checks import one_of
from .denoiser import Denoiser, times
from .parameterizations import coefficients
from .pushing import Push
from .schedules import Level
from .subsets import Subset
from .trajectory import Spread


@dataclass(frozen=True)
class Reference:
    """Where the scores look at finished samples: the network, its uncertain parameters, low levels."""

    denoiser: Denoiser
    subset: Subset
    levels: Sequence[Level]


class Look:
    """What the denoiser makes of finished samples at one level; what two scores need is computed once.

    Args:
        spread: the samples with their deviations.
        denoiser: the network.
        level: the noise level.
        both: moves parameters and samples.
        state: moves the samples alone.
    """

    def __init__(self, spread: Spread, denoiser: Denoiser, level: Level, both: Push, state: Push) -> None:
        if spread.deviations is None:
            raise ValueError("this score needs the deviations of a rule that keeps its directions.")
        self.x, self.dx = spread.x, spread.deviations
        self._spread, self._denoiser, self._level = spread, denoiser, level
        self._both, self._state = both, state

    @cached_property
    def jointly(self) -> tuple[Tensor, Tensor]:
        """x̂0 (B, *shape) and δx̂0 (K, B, *shape) as x_0 and θ move together."""
        return self._denoised(self._both)

    @cached_property
    def by_state(self) -> Tensor:
        """δx̂0 (K, B, *shape) as x_0 moves alone."""
        return self._denoised(self._state)[1]

    def _denoised(self, push: Push) -> tuple[Tensor, Tensor]:
        level = self._level
        inner, changed = level.alpha * self.x, level.alpha * self.dx
        f, df = push(inner, changed, times(level.time, self.x), self._spread.cond)
        p, q = coefficients(self._denoiser.prediction, level.alpha, level.sigma)
        return p * inner + q * f, p * changed + q * df


def off_manifold(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖²."""
    return _squared(look.dx - look.by_state)


def residual_variance(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − δx̂0‖²."""
    return _squared(look.dx - look.jointly[1])


def expected_residual(look: Look) -> Tensor:
    """‖r‖² + Σ_k ‖δr‖²."""
    clean, change = look.jointly
    return (look.x - clean).square().flatten(1).sum(1) + _squared(look.dx - change)


#: the scores that look at reference levels; `trace` needs none
LOOKING: dict[str, Callable[[Look], Tensor]] = {
    score.__name__: score for score in (off_manifold, residual_variance, expected_residual)
}
SCORES = ("trace", *LOOKING)


def evaluate(names: Sequence[str], spread: Spread, at: Reference) -> dict[str, Tensor]:
    """The scores by name, (B,) each; the directions are pushed once for all of them."""
    looking = [name for name in names if name in LOOKING]
    sums: dict[str, Tensor] = {}
    if looking:
        both = Push(at.denoiser, at.subset, spread.directions)
        state = Push(at.denoiser)
        for level in at.levels:
            look = Look(spread, at.denoiser, level, both, state)
            for name in looking:
                value = LOOKING[name](look) / len(at.levels)
                sums[name] = sums[name] + value if name in sums else value
    return {name: sums[name] if name in sums else trace(spread) for name in names}


def trace(spread: Spread) -> Tensor:
    """Σ over the coordinates of the variance."""
    return spread.variance.flatten(1).sum(1)


def choose_default(calibrated: bool, exact_to_first_order: bool = True) -> str:
    """The score that is taken where none is asked for, the same in every function and command.

    Args:
        calibrated: whether the posterior is, so that the variances have the size of what they are of.
        exact_to_first_order: whether the samples' deviations are, as those of the tangent rule.
    """
    return "expected_residual" if calibrated and exact_to_first_order else "trace"


def check_names(score: str | Sequence[str]) -> list[str]:
    """The scores that were asked for, checked."""
    asked = [score] if isinstance(score, str) else list(score)
    if not asked:
        raise ValueError(f"give at least one score: {', '.join(SCORES)}.")
    return [one_of("score", name, SCORES) for name in asked]


def _squared(changes: Tensor) -> Tensor:
    """Σ_k ‖·‖², (K, B, *shape) -> (B,)."""
    return changes.square().sum(0).flatten(1).sum(1)
