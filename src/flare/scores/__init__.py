"""Scores: one number per sample, one file per score. A larger score means less trust.

`trace` counts every way in which a sample could move. `off_manifold` and the residuals denoise it at a few
low noise levels, and average over these. `influence` and `error_profile` noise the finished sample again, and
`neighbors` asks the training data; they need no trajectory and no directions.
"""

from __future__ import annotations

from .error_profile import error_profile
from .influence import influence
from .neighbors import Neighbors, neighbors
from .off_manifold import off_manifold
from .renoising import Renoising
from .residuals import expected_residual, residual_variance
from .score import SCORES, Look, Score, Viewpoint, check_names, evaluate
from .trace import trace

__all__ = [
    "SCORES",
    "Look",
    "Neighbors",
    "Renoising",
    "Score",
    "Viewpoint",
    "check_names",
    "error_profile",
    "evaluate",
    "expected_residual",
    "influence",
    "neighbors",
    "off_manifold",
    "residual_variance",
    "trace",
]
