"""The diagonal posterior: independent parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Posterior, normal
from .curvature import Curvature
from .ggn import Kind, Probes, ggn
from .structure import STRUCTURES, FitInputs, Structure


@dataclass(eq=False)
class DiagonalCurvature(Curvature["Diagonal"]):
    """The diagonal of H.

    Attributes:
        diagonal: (m,), float64.
    """

    structure = "diagonal"

    diagonal: Tensor

    def posterior(self, prior_precision: float, scale: float) -> Diagonal:
        """The posterior with this H."""
        return Diagonal(self, prior_precision, scale)

    def tensors(self) -> dict[str, Tensor]:
        """The diagonal."""
        return {"diagonal": self.diagonal}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(m,)."""
        return {"diagonal": (self.size,)}


class Diagonal(Posterior):
    """Σ = (s·diag H + δ)⁻¹."""

    curvature: DiagonalCurvature

    @property
    def precision(self) -> Tensor:
        """s·diag H + δ, (m,)."""
        return self.scale * self.curvature.diagonal + self.prior_precision

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


def compute_diagonal(inputs: FitInputs, *, probes: Probes = 1, curvature: Kind = "ggn") -> DiagonalCurvature:
    """Independent parameters; no m × m matrix, for all parameters of a large network.

    >>> everything = flare.subsets.everything(denoiser)
    >>> flare.posteriors.diagonal(denoiser, everything, pairs).draw(4).shape
    torch.Size([4, 8330])

    Args:
        inputs: the network, the subset and the pairs.
        probes: the number of random probes per pair, see `curvature.ggn`; a diagonal needs few.
        curvature: `ggn` or `fisher`.
    """
    h, statistics = ggn(
        inputs.denoiser, inputs.subset, inputs.pairs, probes=probes, kind=curvature, diagonal=True,
        resume=inputs.resume, progress=inputs.progress,
    )  # fmt: skip
    return DiagonalCurvature(inputs.origin(statistics), h)


diagonal = STRUCTURES.register(Structure(DiagonalCurvature, compute_diagonal))
