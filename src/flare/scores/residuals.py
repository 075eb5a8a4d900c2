"""Scores of the residual r = x_0 − x̂0(α·x_0): what the denoiser changes about a finished sample."""

from __future__ import annotations

from torch import Tensor

from .score import SCORES, Look, Score, sum_squares


def residual_variance(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − δx̂0‖², x_0 and θ moving together: the variance of r."""
    return sum_squares(look.dx - look.jointly[1])


def expected_residual(look: Look) -> Tensor:
    """‖r‖² + Σ_k ‖δr‖² = E_θ ‖r‖², for a calibrated posterior."""
    clean, change = look.jointly
    return (look.x - clean).square().flatten(1).sum(1) + sum_squares(look.dx - change)


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
