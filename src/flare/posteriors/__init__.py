"""Laplace posteriors over a subset of the parameters: one file per structure of the curvature.

A structure is a function that fits a posterior. The same curvature serves other δ and s, without the data:

>>> posterior = flare.posteriors.dense(denoiser, subset, pairs)
>>> printed = posterior.refit(prior_precision=1e-6, scale=1.0)
>>> tuned = flare.posteriors.tune(printed, denoiser, "marglik", "calibrated")
"""

from __future__ import annotations

from .dense import Dense, dense
from .diagonal import Diagonal, diagonal
from .kronecker import Kronecker, kronecker
from .low_rank import LowRank, low_rank
from .matrix_free import MatrixFree, matrix_free
from .posterior import STRUCTURES, Posterior, Root, Structure, load
from .tuning import tune

__all__ = [
    "STRUCTURES",
    "Dense",
    "Diagonal",
    "Kronecker",
    "LowRank",
    "MatrixFree",
    "Posterior",
    "Root",
    "Structure",
    "dense",
    "diagonal",
    "kronecker",
    "load",
    "low_rank",
    "matrix_free",
    "tune",
]
