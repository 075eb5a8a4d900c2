"""What all posteriors share: N(θ̂, Σ) over a subset of the parameters, Σ = (s·H + δ·I)⁻¹.

A propagation rule only needs directions of a posterior: D (m, k) with Σ ≈ D Dᵀ.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..diffusion.schedules import Schedule, Summary
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage import checkpoint
from .curvature import Curvature, Origin, P

FORMAT = 1


class Posterior(ABC):
    """N(θ̂, Σ) over a subset, Σ = (s·H + δ·I)⁻¹; each structure of H is a subclass in a file of its own.

    Attributes:
        curvature: H and what it was computed from; posteriors can share it.
        prior_precision: δ.
        scale: s; 1 in the paper, N/σ² for a calibrated posterior.
    """

    curvature: Curvature[Any]
    #: whether all processes of a group compute each product with Σ together
    needs_all_processes: ClassVar[bool] = False

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

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀΣv for vectors v (..., m): half the work of `covariance` if eigenvectors are stored."""
        return (v * self.covariance(v)).sum(-1)

    def exact_directions(self) -> Tensor:
        """D (m, m), or (m, r) if Σ has rank r, with D Dᵀ = Σ exactly, if the structure has a square root."""
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
        checkpoint.save(
            path,
            {**self.curvature.tensors(), **subset.tensors()},
            {
                "format": FORMAT,
                "structure": self.structure,
                "prior_precision": self.prior_precision,
                "scale": self.scale,
                "coordinates": subset.kind,
                **subset.metadata(),
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
