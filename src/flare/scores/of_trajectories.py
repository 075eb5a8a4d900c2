"""Scores of a trajectory: the paper's trace, and what the denoiser changes about a finished sample.

The residual of a sample is r = x_0 − x̂0(α·x_0).
"""

from __future__ import annotations

from torch import Tensor

from ..core import ENDPOINT_LEVELS
from ..results.result import Spread
from .score import SCORES, Look, Score, sum_squares


def trace(spread: Spread) -> Tensor:
    """Sum of the variance over the coordinates: it counts every way in which a sample could move."""
    return spread.variance.flatten(1).sum(1)


def off_manifold(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖²: the part of the variance that the denoiser would undo."""
    return sum_squares(look.dx - look.by_state)


def residual_variance(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − δx̂0‖², x_0 and θ moving together: the variance of r."""
    return sum_squares(look.dx - look.jointly[1])


def expected_residual(look: Look) -> Tensor:
    """‖r‖² + Σ_k ‖δr‖² = E_θ ‖r‖², for a calibrated posterior."""
    clean, change = look.jointly
    return (look.x - clean).square().flatten(1).sum(1) + sum_squares(look.dx - change)


SCORES.register(
    Score(
        "trace",
        "how far the sample would move under other models",
        of_spread=trace,
        of_existing=True,
        levels=ENDPOINT_LEVELS,
    )
)
SCORES.register(Score("off_manifold", "the part of the trace that denoising undoes", of_look=off_manifold))
SCORES.register(
    Score("residual_variance", "the variance of what denoising changes", of_look=residual_variance)
)
SCORES.register(
    Score(
        "expected_residual",
        "what denoising changes, on average over the models",
        of_look=expected_residual,
        of_existing=True,
    )
)
