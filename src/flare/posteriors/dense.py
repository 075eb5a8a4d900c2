"""The dense posterior: the full H over the subset, one eigendecomposition, and products from then on."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.progress import Progress
from ..diffusion.noising import Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..storage.resume import Resume
from .curvature import Kind, Origin, Probes, ggn, spectrum
from .posterior import Posterior, normal, register
from .tuning import PriorPrecision, Scale, check_request, choose


@dataclass(eq=False, repr=False)
class Dense(Posterior):
    """Σ = Q (s·Λ + δ)⁻¹ Qᵀ with H = Q Λ Qᵀ.

    Attributes:
        eigenvalues: Λ, (m,), float64.
        eigenvectors: Q, (m, m), float64.
    """

    structure = "dense"

    eigenvalues: Tensor
    eigenvectors: Tensor

    @property
    def precision(self) -> Tensor:
        """s·λ + δ, (m,)."""
        return self.scale * self.eigenvalues + self.prior_precision

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Q (s·Λ + δ)^(−½) Qᵀ ε: the symmetric root, which does not depend on the choice of eigenvectors."""
        Q = self.eigenvectors
        return ((normal(k, self.size, generator) @ Q) / self.precision.sqrt()) @ Q.T

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        Q = self.eigenvectors
        return (((v.double() @ Q) / self.precision) @ Q.T).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """Q (s·Λ + δ)^(−½), (m, m)."""
        return self.eigenvectors / self.precision.sqrt()

    def log_det_precision(self) -> float:
        """Σ log(s·λ + δ)."""
        return float(self.precision.log().sum())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(m,) and (m, m)."""
        return {"eigenvalues": (self.size,), "eigenvectors": (self.size, self.size)}


@register(Dense, stores_matrix=True)
def dense(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    *,
    probes: Probes = "auto",
    curvature: Kind = "ggn",
    validation: Pairs | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Dense:
    """Exact over the subset; stores an m × m matrix.

    >>> flare.posteriors.dense(denoiser, subset, pairs).draw(4).shape
    torch.Size([4, 50])
    >>> flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1e-6, scale=1.0).scale
    1.0

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: The number of random probes per pair, None for all rows of the Jacobian, or "auto" for 8 rows
            per uncertain parameter in all.
        curvature: `ggn`, or `fisher` for the empirical Fisher.
        validation: Held-out pairs, for prior_precision="validation".
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the batches of pairs.
    """
    check_request(prior_precision, scale, validation)
    H, statistics = ggn(
        denoiser, subset, pairs, probes=probes, kind=curvature, resume=Resume.of(resume), progress=progress
    )
    fitted = Dense(Origin.of(denoiser, subset, statistics, pairs.schedule), 1.0, 1.0, *spectrum(H))
    return choose(fitted, denoiser, prior_precision, scale, validation)
