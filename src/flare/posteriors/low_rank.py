"""The low-rank posterior: the leading eigenpairs of H, and the prior on everything else.

Σ is largest where H is smallest, so the complement of the leading eigenvectors must not be dropped:
Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.progress import Progress, watch
from ..core.validation import require_positive_int
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .base import Origin, Spectral, normal, spectrum
from .curvature import Products, residual_statistics
from .tuning import Number, tune

OVERSAMPLING = 8


class LowRank(Spectral):
    """Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ: eigenvalues (r,), eigenvectors (m, r), float64."""

    structure = "low_rank"

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


def low_rank(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    rank: int = 64,
    passes: int = 4,
    seed: int = 0,
    validation: Pairs | None = None,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> LowRank:
    """Fit the low-rank posterior by randomized subspace iteration on products with H.

    No m × m matrix: memory is m·r, time is `passes` walks over the pairs with r + 8 vectors at once.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        rank: r, how many eigenpairs.
        passes: products with H; more of them separate close eigenvalues better.
        seed: of the random start.
        validation: held-out pairs, for prior_precision="validation".
        resume: where the products are kept as they grow; a fit like one that was killed goes on from there.
        progress: wraps the passes.
    """
    m = subset.size
    if require_positive_int("rank", rank) > m:
        raise ValueError(f"rank {rank} was asked of a subset of {m} parameters; ask for at most {m}.")
    H = Products(denoiser, subset, pairs, resume)
    columns = min(m, rank + OVERSAMPLING)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(normal(columns, m, generator).T).Q  # (m, columns)
    image = basis
    for _ in watch((i for i in range(require_positive_int("passes", passes))), passes, progress):
        basis = torch.linalg.qr(image).Q
        image = H(basis.T).T
    # Rayleigh-Ritz in the last basis
    values, vectors = spectrum((basis.T @ image + image.T @ basis) / 2)
    order = torch.arange(columns - 1, columns - 1 - rank, -1)
    fitted = LowRank(
        Origin.of(denoiser, subset, residual_statistics(denoiser, pairs), pairs.schedule),
        values[order],
        (basis @ vectors)[:, order].contiguous(),
        1.0,
        1.0,
    )
    return tune(fitted, denoiser, prior_precision, scale, validation)
