"""The diagonal posterior: every parameter by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.progress import Progress
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .base import Origin, Posterior, normal
from .curvature import Probes, ggn
from .tuning import Number, tune


class Diagonal(Posterior):
    """Σ = (s·diag H + δ)⁻¹: the diagonal (m,), float64."""

    structure = "diagonal"

    def __init__(self, origin: Origin, diagonal: Tensor, prior_precision: float, scale: float) -> None:
        super().__init__(origin, prior_precision, scale)
        self.diagonal = diagonal

    @property
    def _precision(self) -> Tensor:
        return self.scale * self.diagonal + self.prior_precision

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """(s·diag H + δ)^(−½) ε."""
        return normal(k, self.size, generator) / self._precision.sqrt()

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return (v.double() / self._precision).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """A diagonal matrix, (m, m)."""
        return self._precision.rsqrt().diag()

    def log_det_precision(self) -> float:
        """Σ log(s·h + δ)."""
        return float(self._precision.log().sum())

    def tensors(self) -> dict[str, Tensor]:
        """The diagonal."""
        return {"diagonal": self.diagonal}

    def expected(self) -> dict[str, tuple[int, ...]]:
        """(m,)."""
        return {"diagonal": (self.size,)}


def diagonal(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    probes: Probes = 1,
    curvature: str = "ggn",
    validation: Pairs | None = None,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Diagonal:
    """Fit the diagonal posterior: no m × m matrix, so it works with all parameters of a large network.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: see `curvature.ggn`; one a pair by default, since a diagonal needs few rows.
        curvature: `ggn` or `fisher`.
        validation: held-out pairs, for prior_precision="validation".
        resume: where the sum is kept as it grows; a fit like one that was killed goes on from there.
        progress: wraps the batches of pairs.
    """
    h, statistics = ggn(
        denoiser,
        subset,
        pairs,
        probes=probes,
        kind=curvature,
        diagonal=True,
        resume=resume,
        progress=progress,
    )
    fitted = Diagonal(Origin.of(denoiser, subset, statistics, pairs.schedule), h, 1.0, 1.0)
    return tune(fitted, denoiser, prior_precision, scale, validation)
