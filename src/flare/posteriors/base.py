"""The two halves of every posterior: a curvature H, computed once, and N(θ̂, Σ) with Σ = (s·H + δ·I)⁻¹.

A `Curvature` holds H in one structure, and `curvature.posterior(δ, s)` makes a `Posterior` of it. Many
posteriors can share one curvature; none of them needs the data again. A propagation rule only needs
directions of a posterior: D (m, k) with Σ ≈ D Dᵀ.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ..core import distributed
from ..core.progress import Progress
from ..diffusion.schedules import Schedule, Summary
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage import checkpoint
from .curvature import Statistics

if TYPE_CHECKING:
    from .files import Saved

FORMAT = 1
P = TypeVar("P", bound="Posterior")


@dataclass(frozen=True)
class Origin:
    """What a curvature was computed from.

    Attributes:
        subset: the uncertain parameters.
        fingerprint: of the network.
        statistics: of the pass over the training pairs.
        squared_norm: ‖θ̂_I‖², for the prior N(0, I/δ) in the marginal likelihood.
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
        theta = subset.gather(subset.params(denoiser)).double()
        fingerprint = denoiser.fingerprint()
        distributed.require_agreement("the weights, or the subset,", checkpoint.digest(fingerprint, subset))
        levels = None if schedule is None else Summary.of(schedule)
        return cls(subset, fingerprint, statistics, float(theta.square().sum()), levels)


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
            lowest, highest = (0.0, math.inf) if value.ndim == 1 else (-1 - 1e-6, 1 + 1e-6)
            if not (value.isfinite().all() and (value >= lowest).all() and (value <= highest).all()):
                limits = "at least 0" if value.ndim == 1 else "between -1 and 1"
                raise ValueError(f"{name} must be finite and {limits}; fit and save the posterior again.")


class Posterior(ABC):
    """N(θ̂, Σ) over a subset, Σ = (s·H + δ·I)⁻¹; each structure of H is a subclass in a file of its own.

    Attributes:
        curvature: H and what it was computed from; posteriors can share it.
        prior_precision: δ.
        scale: s; 1 in the paper, N/σ² for a calibrated posterior.
    """

    curvature: Curvature[Any]

    def __init__(self, curvature: Curvature[Any], prior_precision: float, scale: float) -> None:
        self.curvature = curvature
        self.prior_precision = positive("prior_precision", prior_precision)
        self.scale = positive("scale", scale)

    @property
    def structure(self) -> str:
        """The name of the structure of H."""
        return self.curvature.structure

    @property
    def origin(self) -> Origin:
        """The subset, the network's fingerprint and the statistics of the fit."""
        return self.curvature.origin

    @property
    def subset(self) -> Subset:
        """The uncertain parameters."""
        return self.origin.subset

    @property
    def size(self) -> int:
        """m, the number of uncertain parameters."""
        return self.origin.subset.size

    @property
    def is_calibrated(self) -> bool:
        """Whether s = N/σ², so that variances are in the units of the samples."""
        statistics = self.origin.statistics
        return statistics.residual_variance > 0 and math.isclose(
            self.scale, statistics.calibrated_scale, rel_tol=1e-6
        )

    def directions(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws from N(0, Σ) divided by √k, as columns (m, k): D Dᵀ is Σ on average."""
        return self.draw(k, generator).T / k**0.5

    @abstractmethod
    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws from N(0, Σ), (k, m)."""

    @abstractmethod
    def covariance(self, v: Tensor) -> Tensor:
        """Σ v for vectors v (..., m)."""

    def exact_directions(self) -> Tensor:
        """D (m, m) with D Dᵀ = Σ exactly, if the structure has a square root."""
        raise NotImplementedError(
            f"a {self.structure} posterior has no square root of Σ; give a number of directions instead."
        )

    @abstractmethod
    def log_det_precision(self) -> float:
        """log det(s·H + δ·I)."""

    def log_marginal_likelihood(self) -> float:
        """The Laplace evidence log p(data | δ, s), for Gaussian residuals of variance N/s per coordinate.

        ½Nd·log(s/2πN) − ½s·d·σ² + ½m·log δ − ½δ‖θ̂‖² − ½log det(sH + δI).
        """
        s, delta, stats = self.scale, self.prior_precision, self.origin.statistics
        N, d = stats.data_size, stats.dimension
        fit = 0.5 * N * d * math.log(s / (2 * math.pi * N)) - 0.5 * s * d * stats.residual_variance
        prior = 0.5 * self.size * math.log(delta) - 0.5 * delta * self.origin.squared_norm
        return fit + prior - 0.5 * self.log_det_precision()

    def refit(self: P, prior_precision: float | None = None, scale: float | None = None) -> P:
        """The posterior of the same curvature with another δ or s; the data is not needed."""
        delta = self.prior_precision if prior_precision is None else prior_precision
        other: P = self.curvature.posterior(delta, self.scale if scale is None else scale)
        return other

    def check(self, denoiser: Denoiser, schedule: Schedule | None = None) -> None:
        """Raise if the posterior was fitted to another network, other weights, or another schedule.

        Args:
            denoiser: the network.
            schedule: the noise levels that it is used with; not checked if None, or if the posterior comes
                from a file that does not record its schedule.
        """
        ours, theirs = self.origin.fingerprint, denoiser.fingerprint()
        if ours["structure"] != theirs["structure"]:
            raise ValueError(
                f"this posterior was fitted to another network: {denoiser.name} has other parameters "
                "(names, shapes or order). Fit a posterior to this network."
            )
        if ours["weights"] != theirs["weights"]:
            raise ValueError(
                f"this posterior was fitted to other weights of {denoiser.name}: they have changed since "
                "(more training, an EMA, another dtype). Fit it again with these weights."
            )
        fitted = self.origin.schedule
        if schedule is None or fitted is None:
            return
        if not fitted.agrees(given := Summary.of(schedule)):
            raise ValueError(
                f"this posterior was fitted for another schedule: {fitted}, not {given}. Use the schedule "
                "that the network was trained on for both, or fit the posterior again."
            )

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write the posterior as safetensors with JSON metadata; `flare.posteriors.load` reads it.

        Args:
            path: the file.
            **about: more JSON values for the metadata, such as how the pairs were drawn.
        """
        subset = self.origin.subset
        indices = {f"subset.{name}": index for name, index in subset.indices.items()}
        checkpoint.save(
            path,
            {**self.curvature.tensors(), **indices},
            {
                "format": FORMAT,
                "structure": self.structure,
                "prior_precision": self.prior_precision,
                "scale": self.scale,
                "shapes": {name: list(shape) for name, shape in subset.shapes.items()},
                "fingerprint": self.origin.fingerprint,
                "statistics": asdict(self.origin.statistics),
                "squared_norm": self.origin.squared_norm,
                "schedule": None if self.origin.schedule is None else asdict(self.origin.schedule),
                **self.curvature.metadata(),
                **about,
            },
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.size:,} parameters, prior_precision={self.prior_precision:.3g}, "
            f"scale={self.scale:.3g})"
        )


def normal(k: int, m: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws, (k, m) float64."""
    return torch.randn(k, m, generator=generator, dtype=torch.float64)


def positive(what: str, value: float) -> float:
    """Return the value as a float if it is finite and above 0."""
    if isinstance(value, (str, bool)) or not (math.isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"{what} must be a positive number, got {value!r}.")
    return float(value)
