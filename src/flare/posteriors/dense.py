"""The dense posterior: H over the subset, one eigendecomposition, everything after it a product."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.progress import Progress
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .base import Origin, Spectral, normal, spectrum
from .curvature import Probes, ggn
from .tuning import Number, tune


class Dense(Spectral):
    """Σ = Q (s·Λ + δ)⁻¹ Qᵀ with H = Q Λ Qᵀ: eigenvalues (m,), eigenvectors (m, m), float64."""

    structure = "dense"

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Q (s·Λ + δ)^(−½) Qᵀ ε: the symmetric root, which no choice of eigenvectors changes."""
        Q = self.eigenvectors
        return ((normal(k, self.size, generator) @ Q) / self.precision.sqrt()) @ Q.T

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        Q = self.eigenvectors
        return (((v.double() @ Q) / self.precision) @ Q.T).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """Q (s·Λ + δ)^(−½), (m, m)."""
        return self.eigenvectors / self.precision.sqrt()

    def expected(self) -> dict[str, tuple[int, ...]]:
        """(m,) and (m, m)."""
        return {"eigenvalues": (self.size,), "eigenvectors": (self.size, self.size)}

    def log_det_precision(self) -> float:
        """Σ log(s·λ + δ)."""
        return float(self.precision.log().sum())


def dense(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    probes: Probes = "auto",
    curvature: str = "ggn",
    validation: Pairs | None = None,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Dense:
    """Fit the dense posterior: exact over the subset, m × m in memory.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: see `curvature.ggn`.
        curvature: `ggn` or `fisher`.
        validation: held-out pairs, for prior_precision="validation".
        resume: where the sum is kept as it grows; a fit like one that was killed goes on from there.
        progress: wraps the batches of pairs.
    """
    H, statistics = ggn(
        denoiser, subset, pairs, probes=probes, kind=curvature, resume=resume, progress=progress
    )
    fitted = Dense(Origin.of(denoiser, subset, statistics, pairs.schedule), *spectrum(H), 1.0, 1.0)
    return tune(fitted, denoiser, prior_precision, scale, validation)
