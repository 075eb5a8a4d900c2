"""Scores: one number per sample, one file per score. A larger score means less trust.

`trace` counts every way in which a sample could move. The others denoise it at a few low noise levels, and
average over these.
"""

from __future__ import annotations

from ..core.registry import import_room
from .base import SCORES, Look, Reference, Score, check_names, evaluate
from .neighbors import Neighbors, neighbors
from .off_manifold import off_manifold
from .residuals import expected_residual, residual_variance
from .trace import trace

__all__ = [
    "SCORES",
    "Look",
    "Neighbors",
    "Reference",
    "Score",
    "check_names",
    "evaluate",
    "expected_residual",
    "neighbors",
    "off_manifold",
    "residual_variance",
    "trace",
]

import_room(__name__, __path__)
