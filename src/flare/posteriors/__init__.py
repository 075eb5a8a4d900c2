"""Laplace posteriors over a subset of the parameters, one structure a file."""

from __future__ import annotations

from .base import Posterior, load
from .dense import Dense, dense
from .diagonal import Diagonal, diagonal
from .kronecker import Kronecker, kronecker
from .low_rank import LowRank, low_rank
from .matrix_free import MatrixFree, matrix_free

__all__ = [
    "Dense",
    "Diagonal",
    "Kronecker",
    "LowRank",
    "MatrixFree",
    "Posterior",
    "dense",
    "diagonal",
    "kronecker",
    "load",
    "low_rank",
    "matrix_free",
]
