"""Scores: one number per sample, one file per score. A larger score means less trust.

`trace` counts every way in which a sample could move. `off_manifold` and the residuals denoise it at a few
low noise levels, and average over these. `error_profile` noises the finished sample again. They need no real
data. The others are distances to the nearest training samples: `neighbors` between the samples themselves,
`activations`, `epistemic_distance` and `influence` between what the network says about them.
"""

from __future__ import annotations

from .activations import Activations
from .encoder import Encoder, Reader
from .epistemic_distance import AnswerGradients
from .error_profile import error_profile
from .influence import LossGradients
from .neighbors import neighbors
from .off_manifold import off_manifold
from .renoising import Renoising
from .residuals import expected_residual, residual_variance
from .score import SCORES, Look, Score, Viewpoint, check_names, evaluate
from .space import Neighbors, Space
from .trace import trace

__all__ = [
    "SCORES",
    "Activations",
    "AnswerGradients",
    "Encoder",
    "Look",
    "LossGradients",
    "Neighbors",
    "Reader",
    "Renoising",
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
