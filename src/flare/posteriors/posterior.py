"""The base of all posteriors: N(θ̂, Σ) over a subset of the parameters, Σ = (s·H + δ·I)⁻¹.

A propagation rule only needs directions of a posterior: D (m, k) with Σ ≈ D Dᵀ. Each structure of H is a file
with a subclass of `Posterior` and a function that fits it, which `register` puts into `STRUCTURES`.
"""

from __future__ import annotations

import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ..core.precision import no_autocast
from ..core.registry import Registry
from ..core.validation import one_of
from ..diffusion.noising import Pairs
from ..diffusion.schedules import Schedule, Summary
from ..network.coordinates import KINDS, Subset
from ..network.denoiser import Denoiser
from ..storage import checkpoint
from .curvature import Origin, Statistics

FORMAT = 1
LARGEST = 2048  # columns of a square root of Σ
_BYTES = 2**28  # of draws, if Σ has many coordinates
_FEWEST = 64  # draws, however many coordinates
_ITERATIVE = 128  # draws of a posterior that solves a system for each of them
P = TypeVar("P", bound="Posterior")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(eq=False, repr=False)
class Posterior(ABC):
    """N(θ̂, Σ) over a subset, Σ = (s·H + δ·I)⁻¹; a subclass adds H in its structure as further fields.

    Attributes:
        origin: The subset, the network's fingerprint and the statistics of the fit.
        prior_precision: δ.
        scale: s; 1 in the paper, N/σ² for a calibrated posterior.
    """

    #: the name of the structure of H
    structure: ClassVar[str]
    #: whether all processes of a group compute each product with Σ together
    needs_all_processes: ClassVar[bool] = False

    origin: Origin
    prior_precision: float
    scale: float

    def __post_init__(self) -> None:
        self.prior_precision = positive("prior_precision", self.prior_precision)
        self.scale = positive("scale", self.scale)

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
        """Whether s = N/σ², which gives variances in the units of the samples."""
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
        """The posterior of the same H with another δ or s; the data is not needed."""
        delta = self.prior_precision if prior_precision is None else prior_precision
        return replace(self, prior_precision=delta, scale=self.scale if scale is None else scale)

    def check(self, denoiser: Denoiser, schedule: Schedule | None = None) -> None:
        """Raise if the posterior was fitted to another network, other weights, or another schedule.

        Args:
            denoiser: The network.
            schedule: The noise levels that it is used with; not checked if None, or if the posterior comes
                from a file that does not record its schedule.
        """
        ours, theirs = self.origin.fingerprint, denoiser.fingerprint()
        if ours["structure"] != theirs["structure"]:
            raise ValueError(
                f"this posterior was fitted to another network: {denoiser.name} has other parameters "
                "(names, shapes or order). Fit again to this network."
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

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a file stores; by default those that are fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `tensors`: vectors are spectra or diagonals, matrices have orthonormal columns."""
        return {}

    def metadata(self) -> dict[str, Any]:
        """The metadata that a file stores for this structure."""
        return {}

    @classmethod
    def restore(
        cls: type[P],
        origin: Origin,
        tensors: Mapping[str, Any],
        meta: Mapping[str, Any],
        denoiser: Denoiser | None,
        pairs: Pairs | None,
    ) -> P:
        """Rebuild the posterior from the tensors and metadata of a file."""
        return cls(origin, meta["prior_precision"], meta["scale"], **tensors)

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

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write the posterior as safetensors with JSON metadata; `flare.posteriors.load` reads it.

        Args:
            path: The file.
            **about: Further JSON values for the metadata, such as how the pairs were drawn.
        """
        subset = self.origin.subset
        checkpoint.save(
            path,
            {**self.tensors(), **subset.tensors()},
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
                **self.metadata(),
                **about,
            },
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.size:,} parameters, prior_precision={self.prior_precision:.3g}, "
            f"scale={self.scale:.3g})"
        )


@dataclass(frozen=True)
class Structure:
    """A structure of H.

    Attributes:
        name: The name that users give.
        summary: One line for help texts and tables.
        function: Fits a posterior: function(denoiser, subset, pairs, prior_precision, scale, **options).
        posterior: The class of its posteriors.
        options: The names of options that only this structure has.
        stores_matrix: Whether it stores an m × m matrix. Memory then grows with m².
    """

    name: str
    summary: str
    function: Callable[..., Posterior]
    posterior: type[Posterior]
    options: tuple[str, ...]
    stores_matrix: bool


#: every structure by name
STRUCTURES: Registry[Structure] = Registry("structure")
_SHARED = ("validation", "resume", "progress")  # keywords of every structure


def register(posterior: type[Posterior], stores_matrix: bool = False) -> Callable[[Function], Function]:
    """Decorate the function that fits a structure, which puts it into `STRUCTURES`."""

    def add(function: Function) -> Function:
        given = inspect.signature(function).parameters.values()
        own = tuple(p.name for p in given if p.kind is p.KEYWORD_ONLY and p.name not in _SHARED)
        summary = (function.__doc__ or "").partition("\n")[0]
        plain = no_autocast()(function)
        STRUCTURES.register(Structure(posterior.structure, summary, plain, posterior, own, stores_matrix))
        return plain

    return add


def normal(k: int, m: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws, (k, m) float64."""
    return torch.randn(k, m, generator=generator, dtype=torch.float64)


def positive(what: str, value: float) -> float:
    """Return the value as a float if it is finite and above 0."""
    if isinstance(value, (str, bool)) or not (math.isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"{what} must be a positive number, got {value!r}.")
    return float(value)


def has_orthonormal_columns(Q: Tensor) -> bool:
    """Whether QᵀQ z = z for four random z, in a fraction of the time that it takes to read Q (m, r).

    Eigenvectors that were computed in float64 pass: their error is about m·1e-16 at most.
    """
    probes = torch.randn(4, Q.shape[1], generator=torch.Generator().manual_seed(0), dtype=Q.dtype)
    return all(((Q.T @ (Q @ z) - z).abs() <= 1e-6).all() for z in probes)


def load(
    path: str | os.PathLike[str], denoiser: Denoiser | None = None, pairs: Pairs | None = None
) -> Posterior:
    """Read a posterior that `posterior.save(path)` wrote; its directions are equal to the last bit.

    >>> posterior.save("posterior.safetensors")
    >>> loaded = flare.posteriors.load("posterior.safetensors", denoiser)
    >>> loaded.prior_precision == posterior.prior_precision
    True

    Args:
        path: The file.
        denoiser: The network; if given, the posterior must have been fitted to it. A matrix-free posterior
            needs it.
        pairs: The training pairs, which only a matrix-free posterior needs.
    """
    tensors, meta = checkpoint.load(path)
    if meta.get("format") != FORMAT or "structure" not in meta:
        raise ValueError(
            f"{path} is not a posterior of format {FORMAT}: its format is {meta.get('format')!r}. "
            "Fit and save it again with this version."
        )
    structure = STRUCTURES.find(meta["structure"])
    try:
        origin = _read_origin(tensors, meta)
        posterior = structure.posterior.restore(origin, tensors, meta, denoiser, pairs)
        posterior.verify()
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{error!r}."
        raise ValueError(f"{path} cannot be used as a {structure.name} posterior: {reason}") from error
    if denoiser is not None:
        posterior.check(denoiser)
    return posterior


def _read_origin(tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Origin:
    """Read and check the origin; its tensors are removed from `tensors`."""
    # files of earlier versions do not name the kind
    kind = KINDS[one_of("kind of coordinates", meta.get("coordinates", Subset.kind), KINDS)]
    subset = kind.restore(tensors, meta)
    statistics = Statistics(**meta["statistics"])
    squared_norm = meta["squared_norm"]
    for name, value in {**asdict(statistics), "squared_norm": squared_norm}.items():
        low = 0 if name in ("residual_variance", "squared_norm") else 1
        if isinstance(value, (str, bool)) or not low <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least {low}, got {value!r}.")
    prints = {name: str(meta["fingerprint"][name]) for name in ("structure", "weights")}
    schedule = meta.get("schedule")  # files of earlier versions do not have it
    levels = None if schedule is None else Summary.read(schedule)
    return Origin(subset, prints, statistics, float(squared_norm), levels)


@dataclass(frozen=True, eq=False)
class Root:
    """D (m, r) with D Dᵀ = Σ: exactly, or on average over draws from the posterior.

    Attributes:
        subset: The coordinates of Σ.
        exact: D with as many columns as Σ has coordinates, if they are at most `LARGEST`.
        draws: Draws from N(0, Σ), (m, k).
    """

    subset: Subset
    exact: Tensor | None
    draws: Tensor

    @classmethod
    def of(cls, posterior: Posterior, seed: int) -> Root:
        """The root of a posterior; all processes make it together."""
        generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
        exact, count = None, min(LARGEST, max(_FEWEST, _BYTES // (8 * posterior.size)))
        if posterior.needs_all_processes:
            count = min(count, _ITERATIVE)
        elif posterior.size <= LARGEST:
            exact = posterior.exact_directions()
        return cls(posterior.subset, exact, posterior.draw(count, generator).T)

    def project(self, v: Tensor, size: int, block: int = 0) -> Tensor:
        """Dᵀv, (..., r) on the CPU with r at most `size`, for vectors v (..., m), at least in float32.

        Args:
            v: The vectors.
            size: The largest number of features.
            block: Each block uses different draws, if there are enough of them.
        """
        v = v.to("cpu", torch.promote_types(v.dtype, torch.float32))
        if self.exact is not None and self.exact.shape[1] <= size:
            return v @ self.exact.to(v)
        size = min(size, self.draws.shape[1])
        first = block % (self.draws.shape[1] // size) * size
        return v @ self.draws[:, first : first + size].to(v) / size**0.5
