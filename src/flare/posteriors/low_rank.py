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
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..core.progress import Progress, warn, watch
from ..core.validation import one_of, require_positive_int
from ..diffusion.noising import Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..storage.resume import Resume
from .curvature import Origin, Probes, ggn, residual_statistics, spectrum
from .posterior import Posterior, normal, register
from .products import Products
from .tuning import PriorPrecision, Scale, check_request, choose

Truncation = Literal["none", "curvature", "covariance"]
TRUNCATIONS: tuple[Truncation, ...] = get_args(Truncation)
OVERSAMPLING = 8
MATRIX = 2000  # parameters up to which the m × m matrix is cheaper than products with it


@dataclass(eq=False, repr=False)
class LowRank(Posterior):
    """Σ = U (s·Λ + δ)⁻¹ Uᵀ + (I − U Uᵀ)/δ; without the second term if truncated.

    Attributes:
        eigenvalues: Λ, (r,), float64.
        eigenvectors: U, (m, r), float64.
        truncation: "none" if Σ has the prior on the complement of the eigenvectors; "curvature" or
            "covariance" if Σ is 0 there.
        others: The other eigenvalues of H, (m − r,) float64, for "covariance"; taken as 0 if None.
    """

    structure = "low_rank"

    eigenvalues: Tensor
    eigenvectors: Tensor
    truncation: Truncation = "none"
    others: Tensor | None = None

    @property
    def precision(self) -> Tensor:
        """s·λ + δ, (r,)."""
        return self.scale * self.eigenvalues + self.prior_precision

    def _apply(self, v: Tensor, power: float) -> Tensor:
        """Σ^(−power) v for v (..., m) and a negative power; 0 on the complement of U if truncated."""
        rest = self.prior_precision**power if self.truncation == "none" else 0.0
        inside = v @ self.eigenvectors  # (..., r)
        return rest * v + (inside * (self.precision**power - rest)) @ self.eigenvectors.T

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Σ^(½) ε: the symmetric root, which does not depend on the choice of eigenvectors."""
        return self._apply(normal(k, self.size, generator), -0.5)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return self._apply(v.double(), -1.0).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m); U (s·Λ + δ)^(−½), (m, r), if truncated."""
        if self.truncation != "none":
            return self.eigenvectors / self.precision.sqrt()
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """log det(s·H + δ·I) over all m eigenvalues of H; those that are not known count as 0.

        Truncation does not change it: the evidence comes from all of H, and a truncated Σ only omits some of
        the variances. "curvature" therefore tunes δ by "marglik" to the same value as "none".
        """
        if self.others is None:
            rest = (self.size - len(self.eigenvalues)) * math.log(self.prior_precision)
        else:
            rest = float((self.scale * self.others + self.prior_precision).log().sum())
        return float(self.precision.log().sum()) + rest

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(r,), (m, r), and (m − r,) for "covariance"."""
        r = self.eigenvalues.numel()
        others = {"others": (self.size - r,)} if self.truncation == "covariance" else {}
        return {"eigenvalues": (r,), "eigenvectors": (self.size, r), **others}

    def metadata(self) -> dict[str, Any]:
        """The truncation."""
        return {"truncation": self.truncation}

    @classmethod
    def restore(
        cls, origin: Origin, tensors: Mapping[str, Any], meta: Mapping[str, Any], *given: Any
    ) -> LowRank:
        """Rebuild the eigenpairs; files of earlier versions have no truncation."""
        kind = one_of("truncation", meta.get("truncation", "none"), TRUNCATIONS)
        return super().restore(origin, {**tensors, "truncation": kind}, meta, *given)


@register(LowRank)
def low_rank(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    *,
    rank: int = 64,
    passes: int = 4,
    truncation: Truncation = "none",
    probes: Probes = "auto",
    validation: Pairs | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> LowRank:
    """The leading eigenpairs, above 2,000 parameters by subspace iteration; memory grows with m·rank.

    Up to 2,000 parameters, the matrix H is computed as for `dense`, and its eigenpairs are exact. Above, each
    of the `passes` over the pairs multiplies H by rank + 8 vectors at once.

    The complement of the leading eigenvectors has the prior variance 1/δ, the largest variance, because the
    variance along an eigenvector of H is 1/(s·λ + δ). `truncation` drops one part of Σ, as in the paper's
    Σ ≈ U Λ Uᵀ, and `exact_directions` then has r columns instead of m.

    >>> flare.posteriors.low_rank(denoiser, subset, pairs, rank=8).draw(4).shape
    torch.Size([4, 50])

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        rank: r, the number of eigenpairs.
        passes: The number of products of the iteration; more of them separate close eigenvalues better.
        truncation: `none`; `curvature` for the leading eigenpairs of H and 0 on the complement, which drops
            the largest variances; `covariance` for the leading eigenpairs of Σ and 0 on the complement, which
            drops the smallest. `covariance` computes the m × m matrix H for any m, because few products do
            not find its trailing eigenpairs.
        probes: The number of random probes per pair if the matrix is computed, None for all rows of the
            Jacobian, or "auto" for 8 rows per uncertain parameter in all. The iteration uses all rows.
        validation: Held-out pairs, for prior_precision="validation".
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the batches of pairs, or the passes of the iteration.
    """
    check_request(prior_precision, scale, validation)
    m = subset.size
    if require_positive_int("rank", rank) > m:
        raise ValueError(f"rank must be at most {m}, the number of parameters in the subset, got {rank}.")
    require_positive_int("passes", passes)
    others = None
    if one_of("truncation", truncation, TRUNCATIONS) == "covariance" or m <= MATRIX:
        H, statistics = ggn(
            denoiser, subset, pairs, probes=probes, resume=Resume.of(resume), progress=progress
        )
        values, vectors = spectrum(H)
    else:
        values, vectors = _iterate(
            Products(denoiser, subset, pairs, Resume.of(resume)), rank, passes, progress
        )
        statistics = residual_statistics(denoiser, pairs)
    if truncation == "covariance":
        _warn_of_ties(values, rank)
        values, vectors, others = values[:rank].clone(), vectors[:, :rank], values[rank:].clone()
    else:  # largest first
        values, vectors = values[-rank:].flip(0), vectors[:, -rank:].flip(1)
    origin = Origin.of(denoiser, subset, statistics, pairs.schedule)
    fitted = LowRank(origin, 1.0, 1.0, values, vectors.contiguous(), truncation, others)
    return choose(fitted, denoiser, prior_precision, scale, validation)


def _iterate(H: Products, rank: int, passes: int, progress: Progress | bool | None) -> tuple[Tensor, Tensor]:
    """Find leading eigenpairs of H, ascending, by randomized subspace iteration.

    scipy's eigsh would multiply one vector per pass over the pairs; here a pass serves the whole block.
    """
    m = H.subset.size
    columns = min(m, rank + OVERSAMPLING)
    basis = torch.linalg.qr(normal(columns, m, torch.Generator().manual_seed(0)).T).Q  # (m, columns)
    image = basis
    for _ in watch((i for i in range(passes)), passes, progress):
        basis = torch.linalg.qr(image).Q
        image = H(basis.T).T
    # Rayleigh-Ritz in the last basis
    values, vectors = spectrum((basis.T @ image + image.T @ basis) / 2)
    return values, basis @ vectors


def _warn_of_ties(values: Tensor, rank: int) -> None:
    """Warn if more eigenvalues of H are 0 than are kept: the choice among them is then arbitrary."""
    zero = int((values <= len(values) * torch.finfo(values.dtype).eps * values[-1]).sum())
    if zero > rank:
        warn(
            f"{zero} eigenvalues of H are 0, more than the rank of {rank}: they share the largest variance, "
            f"and truncation='covariance' keeps an arbitrary choice of them. Give rank={zero} or more."
        )
