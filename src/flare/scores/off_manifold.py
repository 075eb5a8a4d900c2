"""The part of a sample's epistemic variance that the denoiser would undo."""

from __future__ import annotations

from torch import Tensor

from .score import SCORES, Look, Score, sum_squares


def off_manifold(look: Look) -> Tensor:
    """Σ_k ‖δx_0 − (∂x̂0/∂x)·α·δx_0‖²."""
    return sum_squares(look.dx - look.by_state)


SCORES.register(Score("off_manifold", "the part of the trace that denoising undoes", of_look=off_manifold))
