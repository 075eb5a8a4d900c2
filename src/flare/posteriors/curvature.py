"""The curvature H of the loss, which a posterior is made from: computed once, shared by many posteriors.

A `Curvature` holds H in one structure. `curvature.posterior(δ, s)` makes a posterior with Σ = (s·H + δ·I)⁻¹,
without the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ..core import distributed
from ..core.progress import Progress
from ..diffusion.schedules import Schedule, Summary
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage import checkpoint
from .ggn import ROWS_PER_PARAMETER, Statistics, ggn, probe_count, residual_statistics

if TYPE_CHECKING:
    from .base import Posterior
    from .files import Saved

__all__ = [
    "ROWS_PER_PARAMETER",
    "Curvature",
    "Origin",
    "Statistics",
    "ggn",
    "probe_count",
    "residual_statistics",
]

P = TypeVar("P", bound="Posterior")


@dataclass(frozen=True)
class Origin:
    """What a curvature was computed from.

    Attributes:
        subset: the uncertain parameters.
        fingerprint: of the network.
        statistics: of the pass over the training pairs.
        squared_norm: ‖ẑ‖² of the coordinates ẑ of θ̂, for the prior N(0, I/δ) in the marginal likelihood. The
            coordinates of a subset are θ̂_I. Those of a sketch S are (SᵀS)⁻¹Sᵀθ̂: the prior is one of S z, and
            the part of θ̂ that no S z reaches is fixed, as the parameters outside a subset are.
        schedule: the summary of the noise levels of the training pairs; None if unknown.
    """

    subset: Subset
    fingerprint: dict[str, str]
    statistics: Statistics
    squared_norm: float
    schedule: Summary | None = None

    @classmethod
    def of(
        cls, denoiser: Denoiser, subset: Subset, statistics: Statistics, schedule: Schedule | None = None
    ) -> Origin:
        """The origin of a curvature over `subset` of `denoiser`, from pairs of `schedule`."""
        z = subset.locate(denoiser)
        fingerprint = denoiser.fingerprint()
        distributed.require_agreement("the weights, or the subset,", checkpoint.digest(fingerprint, subset))
        levels = None if schedule is None else Summary.of(schedule)
        return cls(subset, fingerprint, statistics, float(z.square().sum()), levels)


@dataclass(eq=False)
class Curvature(ABC, Generic[P]):
    """H over a subset in one structure: the part of a posterior that needs the training pairs.

    A curvature has no file format of its own, because a posterior file is a curvature, δ and s:
    `flare.posteriors.load(path).curvature` reads the curvature back.

    Attributes:
        origin: the subset, the network's fingerprint and the statistics of the pass over the pairs.
    """

    structure: ClassVar[str]

    origin: Origin

    @property
    def subset(self) -> Subset:
        """The uncertain parameters."""
        return self.origin.subset

    @property
    def size(self) -> int:
        """m, the number of uncertain parameters."""
        return self.origin.subset.size

    @abstractmethod
    def posterior(self, prior_precision: float, scale: float) -> P:
        """The posterior with Σ = (s·H + δ·I)⁻¹ for δ = prior_precision and s = scale."""

    def prepare_determinant(self, progress: Progress | bool | None = None) -> None:
        """Compute in advance what log det(s·H + δ·I) needs for all δ and s; nothing in most structures."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a file stores."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `tensors`: vectors are spectra or diagonals, matrices have orthonormal columns."""
        return {}

    def metadata(self) -> dict[str, Any]:
        """The metadata that a file stores for this structure."""
        return {}

    @classmethod
    def restore(cls, saved: Saved) -> Curvature[P]:
        """Rebuild the curvature from a file; by default the tensors have the names of the fields."""
        arguments: dict[str, Any] = dict(saved.tensors)
        return cls(saved.origin, **arguments)

    def verify(self) -> None:
        """Raise if the tensors of a file cannot be a curvature of this structure."""
        tensors = self.tensors()
        for name, shape in self.shapes().items():
            value = tensors[name]
            if value.dtype != torch.float64 or value.shape != shape:
                raise ValueError(
                    f"{name} must be float64 of shape {shape}, got {value.dtype} of {tuple(value.shape)}."
                )
            if value.ndim == 1 and not ((value >= 0) & (value < math.inf)).all():
                raise ValueError(f"{name} must be finite and at least 0; fit and save the posterior again.")
            if value.ndim == 2 and not has_orthonormal_columns(value):
                raise ValueError(f"{name} must have orthonormal columns; fit and save the posterior again.")


def has_orthonormal_columns(Q: Tensor) -> bool:
    """Whether QᵀQ z = z for four random z, in a fraction of the time that it takes to read Q (m, r).

    Eigenvectors that were computed in float64 pass: their error is about m·1e-16 at most.
    """
    probes = torch.randn(4, Q.shape[1], generator=torch.Generator().manual_seed(0), dtype=Q.dtype)
    return all(((Q.T @ (Q @ z) - z).abs() <= 1e-6).all() for z in probes)
