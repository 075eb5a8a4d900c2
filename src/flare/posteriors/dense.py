"""The dense posterior: the full H over the subset, one eigendecomposition, and products from then on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import normal
from .ggn import Kind, Probes, ggn
from .spectral import Spectral, SpectralCurvature, spectrum
from .structure import STRUCTURES, FitInputs, Structure


@dataclass(eq=False)
class DenseCurvature(SpectralCurvature["Dense"]):
    """H = Q Λ Qᵀ: eigenvalues (m,), eigenvectors (m, m), float64."""

    structure = "dense"

    def posterior(self, prior_precision: float, scale: float) -> Dense:
        """The posterior with this H."""
        return Dense(self, prior_precision, scale)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(m,) and (m, m)."""
        return {"eigenvalues": (self.size,), "eigenvectors": (self.size, self.size)}


class Dense(Spectral):
    """Σ = Q (s·Λ + δ)⁻¹ Qᵀ with H = Q Λ Qᵀ."""

    curvature: DenseCurvature

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Q (s·Λ + δ)^(−½) Qᵀ ε: the symmetric root, which does not depend on the choice of eigenvectors."""
        Q = self.eigenvectors
        return ((normal(k, self.size, generator) @ Q) / self.precision.sqrt()) @ Q.T

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        Q = self.eigenvectors
        return (((v.double() @ Q) / self.precision) @ Q.T).to(v.dtype)

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀΣv."""
        return ((v.double() @ self.eigenvectors).square() / self.precision).sum(-1).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """Q (s·Λ + δ)^(−½), (m, m)."""
        return self.eigenvectors / self.precision.sqrt()

    def log_det_precision(self) -> float:
        """Σ log(s·λ + δ)."""
        return float(self.precision.log().sum())


def compute_dense(inputs: FitInputs, *, probes: Probes = "auto", curvature: Kind = "ggn") -> DenseCurvature:
    """Exact over the subset; stores an m × m matrix.

    >>> flare.posteriors.dense(denoiser, subset, pairs).draw(4).shape
    torch.Size([4, 50])
    >>> flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1e-6, scale=1.0).scale
    1.0

    Args:
        inputs: the network, the subset and the pairs.
        probes: the number of random probes per pair; see `curvature.ggn`.
        curvature: `ggn` or `fisher`.
    """
    H, statistics = ggn(
        inputs.denoiser, inputs.subset, inputs.pairs, probes=probes, kind=curvature,
        resume=inputs.resume, progress=inputs.progress,
    )  # fmt: skip
    return DenseCurvature(inputs.origin(statistics), *spectrum(H))


dense = STRUCTURES.register(Structure(DenseCurvature, compute_dense, stores_matrix=True))
