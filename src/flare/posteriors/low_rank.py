"""The low-rank posterior: the leading eigenpairs of H, and the prior on their complement.

Σ is largest where H is smallest, so the complement of the leading eigenvectors must not be dropped:
Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.progress import watch
from ..core.validation import require_positive_int
from .base import normal
from .ggn import residual_statistics
from .products import Products
from .spectral import Spectral, SpectralCurvature, spectrum
from .structure import STRUCTURES, FitInputs, Structure

OVERSAMPLING = 8


@dataclass(eq=False)
class LowRankCurvature(SpectralCurvature["LowRank"]):
    """H ≈ U Λ Uᵀ: eigenvalues (r,), eigenvectors (m, r), float64."""

    structure = "low_rank"

    def posterior(self, prior_precision: float, scale: float) -> LowRank:
        """The posterior with this H."""
        return LowRank(self, prior_precision, scale)


class LowRank(Spectral):
    """Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ."""

    curvature: LowRankCurvature

    def _apply(self, v: Tensor, power: float) -> Tensor:
        """(s·H_r + δ)^power v for v (..., m)."""
        rest = self.prior_precision**power
        inside = v @ self.eigenvectors  # (..., r)
        return rest * v + (inside * (self.precision**power - rest)) @ self.eigenvectors.T

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """(s·H_r + δ)^(−½) ε."""
        return self._apply(normal(k, self.size, generator), -0.5)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return self._apply(v.double(), -1.0).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m)."""
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """Σ log(s·λ + δ) + (m − r) log δ."""
        rest = self.size - len(self.eigenvalues)
        return float(self.precision.log().sum()) + rest * math.log(self.prior_precision)


def compute_low_rank(
    inputs: FitInputs, *, rank: int = 64, passes: int = 4, seed: int = 0
) -> LowRankCurvature:
    """The leading eigenpairs by randomized subspace iteration; memory grows with m·rank.

    Each of the `passes` over the pairs multiplies H by rank + 8 vectors at once.

    Args:
        inputs: the network, the subset and the pairs.
        rank: r, the number of eigenpairs.
        passes: the number of products with H; more of them separate close eigenvalues better.
        seed: of the random start.
    """
    m = inputs.subset.size
    if require_positive_int("rank", rank) > m:
        raise ValueError(f"rank must be at most {m}, the number of parameters in the subset, got {rank}.")
    H = Products(inputs.denoiser, inputs.subset, inputs.pairs, inputs.resume)
    columns = min(m, rank + OVERSAMPLING)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(normal(columns, m, generator).T).Q  # (m, columns)
    image = basis
    for _ in watch((i for i in range(require_positive_int("passes", passes))), passes, inputs.progress):
        basis = torch.linalg.qr(image).Q
        image = H(basis.T).T
    # Rayleigh-Ritz in the last basis
    values, vectors = spectrum((basis.T @ image + image.T @ basis) / 2)
    order = torch.arange(columns - 1, columns - 1 - rank, -1)
    origin = inputs.origin(residual_statistics(inputs.denoiser, inputs.pairs))
    return LowRankCurvature(origin, values[order], (basis @ vectors)[:, order].contiguous())


low_rank = STRUCTURES.register(Structure(LowRankCurvature, compute_low_rank))
