"""Laplace posteriors over a subset of the parameters: one file per structure of the curvature.

A structure fits a posterior in one call, or its curvature alone, which any number of posteriors then share:

>>> posterior = flare.posteriors.dense(denoiser, subset, pairs)
>>> curvature = flare.posteriors.dense.compute_curvature(denoiser, subset, pairs)
>>> posterior = curvature.posterior(prior_precision=1e-6, scale=1.0)
>>> posterior = flare.posteriors.tune(curvature, denoiser, "marglik", "calibrated")
"""

from __future__ import annotations

from ..core.registry import import_room
from .base import Posterior
from .curvature import Curvature
from .dense import Dense, DenseCurvature, dense
from .diagonal import Diagonal, DiagonalCurvature, diagonal
from .files import load
from .kronecker import Kronecker, KroneckerCurvature, kronecker
from .low_rank import LowRank, LowRankCurvature, low_rank
from .matrix_free import MatrixFree, MatrixFreeCurvature, matrix_free
from .structure import STRUCTURES, Structure
from .tuning import tune

__all__ = [
    "STRUCTURES",
    "Curvature",
    "Dense",
    "DenseCurvature",
    "Diagonal",
    "DiagonalCurvature",
    "Kronecker",
    "KroneckerCurvature",
    "LowRank",
    "LowRankCurvature",
    "MatrixFree",
    "MatrixFreeCurvature",
    "Posterior",
    "Structure",
    "dense",
    "diagonal",
    "kronecker",
    "load",
    "low_rank",
    "matrix_free",
    "tune",
]

import_room(__name__, __path__)
globals().update(STRUCTURES)  # a structure has the name of its module, and replaces it here
