"""Scores: one number a sample from its epistemic spread; the larger, the less to be trusted.

`trace` counts every way in which a sample could move. The others ask at low reference levels what the
denoiser makes of it: with x̂0(x) = p·x + q·f(x, t) taken at x = α·x_0, and δx_0 along each direction,

- off_manifold: Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖², only what the denoiser would undo;
- residual_variance: Σ_k ‖δx_0 − δx̂0‖², x_0 and θ moving together: the variance of r = x_0 − x̂0(α·x_0);
- expected_residual: ‖r‖² + Σ_k ‖δr‖² = E_θ ‖r‖², for a calibrated posterior;

each the mean over the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
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


def trace(spread: Spread, at: Reference) -> Tensor:
    """Σ over the coordinates of the variance."""
    return spread.variance.flatten(1).sum(1)


def off_manifold(spread: Spread, at: Reference) -> Tensor:
    """Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖²."""
    return _mean(_squared(dx - change) for dx, _, change in _denoised(spread, at, moving_theta=False))


def residual_variance(spread: Spread, at: Reference) -> Tensor:
    """Σ_k ‖δx_0 − δx̂0‖²."""
    return _mean(_squared(dx - change) for dx, _, change in _denoised(spread, at))


def expected_residual(spread: Spread, at: Reference) -> Tensor:
    """‖r‖² + Σ_k ‖δr‖²."""
    return _mean(
        (spread.x - clean).square().flatten(1).sum(1) + _squared(dx - change)
        for dx, clean, change in _denoised(spread, at)
    )


SCORES: dict[str, Callable[[Spread, Reference], Tensor]] = {
    score.__name__: score for score in (trace, off_manifold, residual_variance, expected_residual)
}


def names(score: str | Sequence[str]) -> list[str]:
    """The scores that were asked for, checked."""
    asked = [score] if isinstance(score, str) else list(score)
    if not asked:
        raise ValueError(f"give at least one score: {', '.join(SCORES)}.")
    return [one_of("score", name, SCORES) for name in asked]


def _denoised(
    spread: Spread, at: Reference, moving_theta: bool = True
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """At each level: δx_0 (K, B, *shape), x̂0 at α·x_0 (B, *shape), and δx̂0 a direction (K, B, *shape)."""
    if spread.deviations is None or spread.directions is None:
        raise ValueError("this score needs the deviations of a rule that keeps its directions.")
    x, dx = spread.x, spread.deviations
    push = Push(at.denoiser, at.subset, spread.directions if moving_theta else None)
    for level in at.levels:
        inner, moved = level.alpha * x, level.alpha * dx
        f, df = push(inner, moved, times(level.time, x), spread.cond)
        p, q = coefficients(at.denoiser.prediction, level.alpha, level.sigma)
        yield dx, p * inner + q * f, p * moved + q * df


def _mean(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


def _squared(changes: Tensor) -> Tensor:
    """Σ_k ‖·‖², (K, B, *shape) -> (B,)."""
    return changes.square().sum(0).flatten(1).sum(1)
