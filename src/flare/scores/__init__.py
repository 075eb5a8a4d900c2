"""Scores: one number per sample. A larger score means less trust.

`trace` counts every way in which a sample could move. `off_manifold` and the residuals denoise it at a few
low noise levels, and average over these. `error_profile` noises the finished sample again. They need no real
data. The others are distances to the nearest training samples: `neighbors` between the samples themselves,
`activations`, `epistemic_distance` and `influence` between the network's responses to them.
"""

from __future__ import annotations

from .activations import Activations
from .encoder import Encoder, Reader
from .error_profile import error_profile
from .gradients import AnswerGradients, LossGradients
from .neighbors import neighbors
from .of_trajectories import expected_residual, off_manifold, residual_variance, trace
from .score import SCORES, Look, Score, Viewpoint, check_names, evaluate
from .space import Neighbors, Space

__all__ = [
    "SCORES",
    "Activations",
    "AnswerGradients",
    "Encoder",
    "Look",
    "LossGradients",
    "Neighbors",
    "Reader",
    "Score",
    "Space",
    "Viewpoint",
    "check_names",
    "error_profile",
    "evaluate",
    "expected_residual",
    "neighbors",
    "off_manifold",
    "residual_variance",
    "trace",
]
