"""The low-rank posterior: the leading eigenpairs of H, and the prior on their complement.

Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ, with the r leading eigenpairs (Λ, U) of H. The variance along an
eigenvector of H is 1/(s·λ + δ), which is largest where λ is smallest, so the complement of U holds the
largest variances.

The paper writes Σ ≈ U Λ Uᵀ with r terms and no complement, and does not say which r eigenpairs these are.
`truncation` offers both readings:

- "curvature": Σ = U (s·Λ + δ)⁻¹ Uᵀ with the leading eigenpairs of H. It drops the m − r largest variances.
- "covariance": the same formula with the leading eigenpairs of Σ, which are the trailing ones of H. It drops
  the m − r smallest variances, and is the best approximation of Σ with rank r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ..core.progress import warn, watch
from ..core.validation import one_of, require_positive_int
from .base import normal
from .ggn import Probes, ggn, residual_statistics
from .products import Products
from .spectral import Spectral, SpectralCurvature, spectrum
from .structure import STRUCTURES, FitInputs, Structure

if TYPE_CHECKING:
    from .files import Saved

Truncation = Literal["none", "curvature", "covariance"]
TRUNCATIONS: tuple[Truncation, ...] = get_args(Truncation)
OVERSAMPLING = 8
MATRIX = 2000  # parameters up to which the m × m matrix is cheaper than products with it


@dataclass(eq=False)
class LowRankCurvature(SpectralCurvature["LowRank"]):
    """H as r of its eigenpairs: eigenvalues (r,), eigenvectors (m, r), float64.

    Attributes:
        truncation: "none" if Σ has the prior on the complement of the eigenvectors; "curvature" or
            "covariance" if Σ is 0 there.
        others: the other eigenvalues of H, (m − r,) float64, for "covariance"; taken as 0 if None.
    """

    structure = "low_rank"

    truncation: Truncation = "none"
    others: Tensor | None = None

    def posterior(self, prior_precision: float, scale: float) -> LowRank:
        """The posterior with this H."""
        return LowRank(self, prior_precision, scale)

    def tensors(self) -> dict[str, Tensor]:
        """The eigenpairs, and the other eigenvalues if they are known."""
        return super().tensors() | ({} if self.others is None else {"others": self.others})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(r,), (m, r), and (m − r,) for "covariance"."""
        others = {"others": (self.size - self.eigenvalues.numel(),)}
        return super().shapes() | (others if self.truncation == "covariance" else {})

    def metadata(self) -> dict[str, Any]:
        """The truncation."""
        return {"truncation": self.truncation}

    @classmethod
    def restore(cls, saved: Saved) -> LowRankCurvature:
        """Rebuild the curvature from a file; files of earlier versions are not truncated."""
        truncation = one_of("truncation", saved.meta.get("truncation", "none"), TRUNCATIONS)
        arguments: dict[str, Any] = {**saved.tensors, "truncation": truncation}
        return cls(saved.origin, **arguments)


class LowRank(Spectral):
    """Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ; without the second term if truncated."""

    curvature: LowRankCurvature

    @property
    def is_truncated(self) -> bool:
        """Whether Σ is 0 on the complement of U."""
        return self.curvature.truncation != "none"

    def _apply(self, v: Tensor, power: float) -> Tensor:
        """Σ^(−power) v for v (..., m) and a negative power; 0 on the complement of U if truncated."""
        rest = 0.0 if self.is_truncated else self.prior_precision**power
        inside = v @ self.eigenvectors  # (..., r)
        return rest * v + (inside * (self.precision**power - rest)) @ self.eigenvectors.T

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Σ^(½) ε: the symmetric root, which does not depend on the choice of eigenvectors."""
        return self._apply(normal(k, self.size, generator), -0.5)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return self._apply(v.double(), -1.0).to(v.dtype)

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀΣv."""
        v, dtype = v.double(), v.dtype
        inside = v @ self.eigenvectors  # (..., r)
        value = (inside.square() / self.precision).sum(-1)
        if not self.is_truncated:
            outside = v - inside @ self.eigenvectors.T
            value = value + outside.square().sum(-1) / self.prior_precision
        return value.to(dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m); U (s·Λ + δ)^(−½), (m, r), if truncated."""
        if self.is_truncated:
            return self.eigenvectors / self.precision.sqrt()
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """log det(s·H + δ·I) over all m eigenvalues of H; those that are not known count as 0.

        Truncation does not change it: the evidence is that of H, and a truncated Σ only leaves some of the
        variances out. "curvature" therefore tunes δ by "marglik" to the same value as "none".
        """
        others = self.curvature.others
        if others is None:
            rest = (self.size - len(self.eigenvalues)) * math.log(self.prior_precision)
        else:
            rest = float((self.scale * others + self.prior_precision).log().sum())
        return float(self.precision.log().sum()) + rest


def compute_low_rank(
    inputs: FitInputs,
    *,
    rank: int = 64,
    passes: int = 4,
    seed: int = 0,
    truncation: Truncation = "none",
    probes: Probes = "auto",
) -> LowRankCurvature:
    """The leading eigenpairs, above 2,000 parameters by subspace iteration; memory grows with m·rank.

    Up to 2,000 parameters, the matrix H is computed as for `dense`, and its eigenpairs are exact. Above, each
    of the `passes` over the pairs multiplies H by rank + 8 vectors at once.

    The complement of the leading eigenvectors has the prior variance 1/δ, the largest that there is: the
    variance along an eigenvector of H is 1/(s·λ + δ). `truncation` leaves out one part of Σ, as in the
    paper's Σ ≈ U Λ Uᵀ, and `exact_directions` are then r instead of m.

    >>> flare.posteriors.low_rank(denoiser, subset, pairs, rank=8).draw(4).shape
    torch.Size([4, 50])

    Args:
        inputs: the network, the subset and the pairs.
        rank: r, the number of eigenpairs.
        passes: the number of products of the iteration; more of them separate close eigenvalues better.
        seed: Random seed for the start of the iteration.
        truncation: `none`; `curvature` for the leading eigenpairs of H and 0 on the complement, which drops
            the largest variances; `covariance` for the leading eigenpairs of Σ and 0 on the complement, which
            drops the smallest. `covariance` computes the m × m matrix H for any m, because few products do
            not find its trailing eigenpairs.
        probes: the number of random probes per pair if the matrix is computed; see `curvature.ggn`. The
            iteration uses all rows.
    """
    m = inputs.subset.size
    if require_positive_int("rank", rank) > m:
        raise ValueError(f"rank must be at most {m}, the number of parameters in the subset, got {rank}.")
    require_positive_int("passes", passes)
    if one_of("truncation", truncation, TRUNCATIONS) == "covariance" or m <= MATRIX:
        return _decompose(inputs, rank, truncation, probes)
    values, vectors = _iterate(inputs, rank, passes, seed)
    origin = inputs.origin(residual_statistics(inputs.denoiser, inputs.pairs))
    return LowRankCurvature(origin, values, vectors, truncation)


def _iterate(inputs: FitInputs, rank: int, passes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Find the leading eigenpairs of H, largest first, by randomized subspace iteration."""
    H = Products(inputs.denoiser, inputs.subset, inputs.pairs, inputs.resume)
    columns = min(H.subset.size, rank + OVERSAMPLING)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(normal(columns, H.subset.size, generator).T).Q  # (m, columns)
    image = basis
    for _ in watch((i for i in range(passes)), passes, inputs.progress):
        basis = torch.linalg.qr(image).Q
        image = H(basis.T).T
    # Rayleigh-Ritz in the last basis
    values, vectors = spectrum((basis.T @ image + image.T @ basis) / 2)
    return _lead(values, basis @ vectors, rank)


def _lead(values: Tensor, vectors: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The last `rank` of ascending eigenpairs, largest first."""
    return values[-rank:].flip(0), vectors[:, -rank:].flip(1).contiguous()


def _decompose(inputs: FitInputs, rank: int, truncation: Truncation, probes: Probes) -> LowRankCurvature:
    """Find the leading eigenpairs of H, or for "covariance" the trailing ones, from the whole matrix."""
    H, statistics = ggn(
        inputs.denoiser, inputs.subset, inputs.pairs, probes=probes, resume=inputs.resume,
        progress=inputs.progress,
    )  # fmt: skip
    origin = inputs.origin(statistics)
    values, vectors = spectrum(H)
    if truncation != "covariance":
        return LowRankCurvature(origin, *_lead(values, vectors, rank), truncation)
    zero = int((values <= len(values) * torch.finfo(values.dtype).eps * values[-1]).sum())
    if zero > rank:
        warn(
            f"{zero} eigenvalues of H are 0, more than the rank of {rank}: they share the largest variance, "
            f"and truncation='covariance' keeps an arbitrary choice of them. Give rank={zero} or more."
        )
    trailing = vectors[:, :rank].contiguous()
    return LowRankCurvature(origin, values[:rank].clone(), trailing, truncation, values[rank:].clone())


low_rank = STRUCTURES.register(Structure(LowRankCurvature, compute_low_rank))
