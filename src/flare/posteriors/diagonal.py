"""The diagonal posterior: independent parameters."""

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
from .curvature import Kind, Origin, Probes, ggn
from .posterior import Posterior, normal, register
from .tuning import PriorPrecision, Scale, check_request, choose


@dataclass(eq=False, repr=False)
class Diagonal(Posterior):
    """Σ = (s·diag H + δ)⁻¹.

    Attributes:
        diagonal: Diag H, (m,), float64.
    """

    structure = "diagonal"

    diagonal: Tensor

    @property
    def precision(self) -> Tensor:
        """s·diag H + δ, (m,)."""
        return self.scale * self.diagonal + self.prior_precision

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """(s·diag H + δ)^(−½) ε."""
        return normal(k, self.size, generator) / self.precision.sqrt()

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return (v.double() / self.precision).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """A diagonal matrix, (m, m)."""
        return self.precision.rsqrt().diag()

    def log_det_precision(self) -> float:
        """Σ log(s·h + δ)."""
        return float(self.precision.log().sum())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(m,)."""
        return {"diagonal": (self.size,)}


@register(Diagonal)
def diagonal(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    *,
    probes: Probes = 1,
    curvature: Kind = "ggn",
    validation: Pairs | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Diagonal:
    """Independent parameters; no m × m matrix, for all parameters of a large network.

    >>> everything = flare.subsets.everything(denoiser)
    >>> flare.posteriors.diagonal(denoiser, everything, pairs).draw(4).shape
    torch.Size([4, 8330])

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: The number of random probes per pair, None for all rows of the Jacobian, or "auto" for 8 rows
            per uncertain parameter in all. A diagonal needs few.
        curvature: `ggn`, or `fisher` for the empirical Fisher.
        validation: Held-out pairs, for prior_precision="validation".
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the batches of pairs.
    """
    check_request(prior_precision, scale, validation)
    h, statistics = ggn(
        denoiser, subset, pairs, probes=probes, kind=curvature, diagonal=True,
        resume=Resume.of(resume), progress=progress,
    )  # fmt: skip
    fitted = Diagonal(Origin.of(denoiser, subset, statistics, pairs.schedule), 1.0, 1.0, h)
    return choose(fitted, denoiser, prior_precision, scale, validation)
