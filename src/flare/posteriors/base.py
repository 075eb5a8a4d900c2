"""What all posteriors share: θ ~ N(θ̂, Σ) over a subset, Σ = (s·H + δ·I)⁻¹.

All that a propagation rule needs of one is directions: D (m, k) with Σ ≈ D Dᵀ.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..core import distributed
from ..core.validation import one_of
from ..diffusion.noising import Pairs
from ..diffusion.schedules import Schedule, Summary
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage import checkpoint
from .curvature import Statistics

FORMAT = 1
Self = TypeVar("Self", bound="Posterior")


@dataclass(frozen=True)
class Origin:
    """Where a posterior comes from.

    Attributes:
        subset: the parameters it speaks of.
        fingerprint: of the network it was fitted to.
        statistics: of the pass over the training pairs.
        squared_norm: ‖θ̂_I‖², for the prior N(0, I/δ) in the marginal likelihood.
        schedule: the summary of the noise levels of its training pairs; None if unknown.
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
        """The origin of a posterior over `subset` of `denoiser`, fitted to pairs of `schedule`."""
        theta = subset.gather(subset.params(denoiser)).double()
        fingerprint = denoiser.fingerprint()
        distributed.require_agreement("the weights, or the subset,", checkpoint.digest(fingerprint, subset))
        levels = None if schedule is None else Summary.of(schedule)
        return cls(subset, fingerprint, statistics, float(theta.square().sum()), levels)


class Posterior(ABC):
    """N(θ̂, Σ) over a subset, Σ = (s·H + δ·I)⁻¹; a structure of H is a subclass in a file of its own.

    Attributes:
        origin: the subset, the network's fingerprint and the statistics of the fit.
        prior_precision: δ.
        scale: s; 1 in the paper, N/σ² for a calibrated posterior.
    """

    structure: ClassVar[str]
    structures: ClassVar[dict[str, type[Posterior]]] = {}

    def __init_subclass__(cls) -> None:
        if "structure" in vars(cls):
            Posterior.structures[cls.structure] = cls

    def __init__(self, origin: Origin, prior_precision: float, scale: float) -> None:
        self.origin = origin
        self.prior_precision = positive("prior_precision", prior_precision)
        self.scale = positive("scale", scale)

    @property
    def subset(self) -> Subset:
        """The parameters that the posterior speaks of."""
        return self.origin.subset

    @property
    def size(self) -> int:
        """m, the number of uncertain parameters."""
        return self.origin.subset.size

    @property
    def is_calibrated(self) -> bool:
        """Whether s = N/σ², so that the variances have the size of what they are the variance of."""
        statistics = self.origin.statistics
        return statistics.residual_variance > 0 and math.isclose(
            self.scale, statistics.calibrated_scale, rel_tol=1e-6
        )

    def directions(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """K draws of N(0, Σ) divided by √k, as columns (m, k): D Dᵀ is Σ on average."""
        return self.draw(k, generator).T / k**0.5

    @abstractmethod
    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """K draws of N(0, Σ), (k, m)."""

    @abstractmethod
    def covariance(self, v: Tensor) -> Tensor:
        """Σ v for vectors v (..., m)."""

    def exact_directions(self) -> Tensor:
        """D (m, m) with D Dᵀ = Σ exactly, where the structure has a square root."""
        raise NotImplementedError(
            f"a {self.structure} posterior has no square root of Σ; give a number of directions instead."
        )

    def log_det_precision(self) -> float:
        """Log det(s·H + δ·I)."""
        raise NotImplementedError(
            f"a {self.structure} posterior does not know its determinant; give prior_precision as a "
            "number, or use a low_rank posterior to tune it."
        )

    def log_marginal_likelihood(self) -> float:
        """The Laplace evidence log p(data | δ, s), for Gaussian residuals of variance N/s a coordinate.

        ½Nd·log(s/2πN) − ½s·d·σ² + ½m·log δ − ½δ‖θ̂‖² − ½log det(sH + δI).
        """
        s, delta, stats = self.scale, self.prior_precision, self.origin.statistics
        N, d = stats.data_size, stats.dimension
        fit = 0.5 * N * d * math.log(s / (2 * math.pi * N)) - 0.5 * s * d * stats.residual_variance
        prior = 0.5 * self.size * math.log(delta) - 0.5 * delta * self.origin.squared_norm
        return fit + prior - 0.5 * self.log_det_precision()

    def refit(self: Self, prior_precision: float | None = None, scale: float | None = None) -> Self:
        """The same curvature with another δ or s; the data is not touched."""
        other = copy.copy(self)
        if prior_precision is not None:
            other.prior_precision = positive("prior_precision", prior_precision)
        if scale is not None:
            other.scale = positive("scale", scale)
        return other

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What has to be kept on disk besides the origin, δ and s."""

    def expected(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `tensors`: vectors are spectra or diagonals, matrices have orthonormal columns."""
        return {}

    def verify(self) -> None:
        """Raise if what a file held cannot be a posterior of this structure."""
        tensors = self.tensors()
        for name, shape in self.expected().items():
            value = tensors[name]
            if value.dtype != torch.float64 or value.shape != shape:
                raise ValueError(
                    f"{name} must be float64 of shape {shape}, got {value.dtype} of {tuple(value.shape)}."
                )
            lowest, highest = (0.0, math.inf) if value.ndim == 1 else (-1 - 1e-6, 1 + 1e-6)
            if not (value.isfinite().all() and (value >= lowest).all() and (value <= highest).all()):
                raise ValueError(f"{name} has numbers beyond {lowest:.3g} to {highest:.3g}, or none.")

    def check(self, denoiser: Denoiser, schedule: Schedule | None = None) -> None:
        """Raise if the posterior was fitted to another network, other weights of it, or another schedule.

        Args:
            denoiser: the network.
            schedule: the noise levels that it is used with; not checked if None, or if the posterior comes
                from a file that does not say.
        """
        ours, theirs = self.origin.fingerprint, denoiser.fingerprint()
        if ours["structure"] != theirs["structure"]:
            raise ValueError(
                f"this posterior was fitted to another network: {denoiser.name} has other parameters "
                "(names, shapes or order). Fit one to this network."
            )
        if ours["weights"] != theirs["weights"]:
            raise ValueError(
                f"this posterior was fitted to other weights of {denoiser.name}: they have changed since "
                "(more training, an EMA, another dtype). Fit it again at these weights."
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
            {**self.tensors(), **indices},
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
                **self.extra(),
                **about,
            },
        )

    def extra(self) -> dict[str, Any]:
        """Metadata of the structure's own."""
        return {}

    @classmethod
    def restore(cls, saved: Saved) -> Posterior:
        """Make the posterior again; here the tensors are named as the constructor names them."""
        arguments: dict[str, Any] = {**saved.tensors, **saved.numbers}
        return cls(saved.origin, **arguments)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.size:,} parameters, prior_precision={self.prior_precision:.3g}, "
            f"scale={self.scale:.3g})"
        )


class Spectral(Posterior):
    """A posterior that keeps eigenpairs of H: eigenvalues (r,) and eigenvectors (m, r), float64."""

    def __init__(
        self, origin: Origin, eigenvalues: Tensor, eigenvectors: Tensor, prior_precision: float, scale: float
    ) -> None:
        super().__init__(origin, prior_precision, scale)
        self.eigenvalues, self.eigenvectors = eigenvalues, eigenvectors

    @property
    def precision(self) -> Tensor:
        """s·λ + δ, (r,)."""
        return self.scale * self.eigenvalues + self.prior_precision

    def tensors(self) -> dict[str, Tensor]:
        """The eigenpairs."""
        return {"eigenvalues": self.eigenvalues, "eigenvectors": self.eigenvectors}

    def expected(self) -> dict[str, tuple[int, ...]]:
        """(r,) and (m, r)."""
        rank = self.eigenvalues.numel()
        return {"eigenvalues": (rank,), "eigenvectors": (self.size, rank)}


def normal(k: int, m: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws, (k, m) float64."""
    return torch.randn(k, m, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Saved:
    """What a file holds, and what the caller gives with it.

    Attributes:
        path: of the file.
        origin: as it was.
        tensors: those of the structure.
        meta: the metadata.
        denoiser: the network, if given.
        pairs: the training pairs, if given.
    """

    path: str
    origin: Origin
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    denoiser: Denoiser | None
    pairs: Pairs | None

    @property
    def numbers(self) -> dict[str, Any]:
        """δ and s."""
        return {key: self.meta[key] for key in ("prior_precision", "scale")}


def load(
    path: str | os.PathLike[str], denoiser: Denoiser | None = None, pairs: Pairs | None = None
) -> Posterior:
    """Read a posterior that `posterior.save(path)` wrote; its directions are equal to the last bit.

    Args:
        path: the file.
        denoiser: the network; if given, it is checked to be the one that the posterior was fitted to.
            A matrix-free posterior needs it.
        pairs: the training pairs, which a matrix-free posterior needs again.
    """
    tensors, meta = checkpoint.load(path)
    if meta.get("format") != FORMAT or "structure" not in meta:
        raise ValueError(
            f"{path} is not a posterior of format {FORMAT} (it says {meta.get('format')!r}); "
            "fit and save it again with this version."
        )
    structure = one_of("posterior structure", meta["structure"], Posterior.structures)
    try:
        saved = Saved(str(path), _origin(tensors, meta), tensors, meta, denoiser, pairs)
        posterior = Posterior.structures[structure].restore(saved)
        posterior.verify()
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} is not a whole {structure} posterior: {error!r}.") from error
    if denoiser is not None:
        posterior.check(denoiser)
    return posterior


def _origin(tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Origin:
    """The origin that a file tells of, checked; its tensors are taken out of the others."""
    shapes = {name: torch.Size(shape) for name, shape in meta["shapes"].items()}
    indices = {name: tensors.pop(f"subset.{name}") for name in shapes}
    for name, index in indices.items():
        whole = index.dtype == torch.int64 and index.ndim == 1 and min(shapes[name], default=1) >= 1
        # sorted and without repeats, within the tensor
        inside = whole and bool((index.diff() > 0).all()) and len(index) > 0
        if not (inside and int(index[0]) >= 0 and int(index[-1]) < shapes[name].numel()):
            raise ValueError(
                f"the subset of {name!r} must be rising positions in a tensor of shape {tuple(shapes[name])}."
            )
    statistics = Statistics(**meta["statistics"])
    for name, value in asdict(statistics).items():
        low = 0 if name == "residual_variance" else 1
        if isinstance(value, (str, bool)) or not low <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least {low}, got {value!r}.")
    prints = {name: str(meta["fingerprint"][name]) for name in ("structure", "weights")}
    told = meta.get("schedule")  # files of earlier versions do not have it
    levels = None if told is None else Summary.read(told)
    return Origin(Subset(indices, shapes), prints, statistics, float(meta["squared_norm"]), levels)


def spectrum(H: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (rising, rounding below 0 cut) and eigenvectors of a curvature; a bad one is named."""
    if not torch.isfinite(H).all():
        raise ValueError("H has NaN or infinity: the curvature is not usable.")
    values, vectors = torch.linalg.eigh(H)
    if values[0] < -1e-4 * values[-1].abs():
        raise ValueError(
            f"H is indefinite: its eigenvalues go from {values[0]:.3g} to {values[-1]:.3g}, but a GGN has "
            "none below 0. Check how it was made."
        )
    # contiguous, as a file gives it back: products are then equal to the last bit
    return values.clamp(min=0), vectors.contiguous()


def positive(what: str, value: float) -> float:
    """The value as a number, if it is finite and above 0."""
    if isinstance(value, (str, bool)) or not (math.isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"{what} must be a positive number, got {value!r}.")
    return float(value)
