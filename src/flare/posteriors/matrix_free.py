"""The matrix-free posterior: no m × m matrix and no factors; every draw is a linear solve.

The solution d of (s·H + δI) d = √s·n^(−½) Σ_i √w_i J_iᵀ ε_i + √δ·ε' has covariance Σ exactly, and Σ v is the
solution z of (s·H + δI) z = v. Both are solved by conjugate gradients on products with H, for all vectors at
once, preconditioned with the leading eigenpairs of H (randomized Nyström). To tune δ, the determinant is
estimated by stochastic Lanczos quadrature: for random signs v, vᵀ log(s·H + δI) v is a sum over the
eigenpairs of the small tridiagonal matrix of Lanczos' method, which does not depend on s and δ.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.distributed import broadcast
from ..core.progress import Progress
from ..core.validation import require_positive_int
from ..diffusion.noising import Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..storage.resume import Resume
from .curvature import Origin, residual_statistics
from .posterior import Posterior, normal, positive, register
from .products import Products
from .tuning import PriorPrecision, Scale, check_request, choose


@dataclass(eq=False, repr=False)
class MatrixFree(Posterior):
    """Σ by conjugate gradients.

    Attributes:
        H: The products with H; they hold the network and the pairs.
        tolerance: The relative residual at which a solve ends.
        max_iterations: The number of products after which a solve fails.
        precondition: Whether to precondition with the leading eigenpairs of H.
        iterations: The number of products of the last solve.
        residual: The largest relative residual ‖b − (sH+δ)x‖/‖b‖ of the last solve.
    """

    structure = "matrix_free"
    needs_all_processes = True

    H: Products
    tolerance: float = 1e-3
    max_iterations: int = 1000
    precondition: bool = True
    iterations: int = field(default=0, init=False)
    residual: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("tolerance", self.tolerance)
        require_positive_int("max_iterations", self.max_iterations)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Solve for random right-hand sides with covariance s·H + δI."""
        data = self.scale**0.5 * self.H.noise(k, generator)
        prior = self.prior_precision**0.5 * normal(k, self.size, generator)
        return self._solve(data + prior)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v by one solve."""
        flat = v.reshape(-1, self.size).double()
        return self._solve(flat).reshape(v.shape).to(v.dtype)

    def log_det_precision(self) -> float:
        """log det(s·H + δ·I), estimated: (m/P) Σ_p Σ_k τ_pk² log(s·θ_pk + δ) over P random probes."""
        nodes, weights = self.H.quadrature()
        values = (self.scale * nodes.clamp(min=0) + self.prior_precision).log()
        return float((weights * values).sum() * self.size / len(nodes))

    def metadata(self) -> dict[str, Any]:
        """The settings of the solver, and a hash of the pairs; the network and pairs are given on loading."""
        settings = {name: getattr(self, name) for name in ("tolerance", "max_iterations", "precondition")}
        return {**settings, "pairs": self.H.fingerprint}

    @classmethod
    def restore(
        cls,
        origin: Origin,
        tensors: Mapping[str, Any],
        meta: Mapping[str, Any],
        denoiser: Denoiser | None,
        pairs: Pairs | None,
    ) -> MatrixFree:
        """Rebuild the products from the network and the pairs."""
        if denoiser is None or pairs is None:
            raise ValueError(
                "it needs its network and training pairs again: load(path, denoiser=..., pairs=...)."
            )
        H = Products(denoiser, origin.subset, pairs)
        if H.fingerprint != meta["pairs"]:
            raise ValueError("it was fitted to other training pairs; give the same data, n and seed.")
        precondition = bool(meta.get("precondition", True))  # absent in files of earlier versions
        settings = {"H": H, "precondition": precondition}
        settings |= {name: meta[name] for name in ("tolerance", "max_iterations")}
        return super().restore(origin, settings, meta, denoiser, pairs)

    def _solve(self, b: Tensor) -> Tensor:
        """Return x with (s·H + δ) x = b for rows b (k, m), by conjugate gradients.

        scipy's cg takes one right-hand side; here a pass over the pairs serves all rows, each with its own
        step length.
        """
        b = broadcast(b)  # draws without a generator differ between processes
        tiny = torch.finfo(b.dtype).tiny
        norm = b.norm(dim=1, keepdim=True).clamp(min=tiny)
        x, r = torch.zeros_like(b), b
        p = z = self._precondition(r)
        rz = _inner(r, z)
        self.iterations, self.residual = 0, math.inf
        while self.residual > self.tolerance and self.iterations < self.max_iterations:
            q = self.scale * self.H(p) + self.prior_precision * p
            step = rz / _inner(p, q).clamp(min=tiny)  # 0/tiny: a row that has converged does not change
            x, r = x + step * p, r - step * q
            z, before = self._precondition(r), rz
            rz = _inner(r, z)
            p = z + rz / before.clamp(min=tiny) * p
            # broadcast: all processes must stop at the same iteration
            self.residual = float(broadcast((r.norm(dim=1, keepdim=True) / norm).max()))
            self.iterations += 1
        if not self.residual <= self.tolerance:
            raise RuntimeError(
                f"conjugate gradients did not converge: relative residual {self.residual:.2e} after "
                f"{self.iterations} iterations, but tolerance is {self.tolerance:.0e}. Raise prior_precision "
                f"(now {self.prior_precision:.2g}), max_iterations or tolerance, or use a float64 network."
            )
        return x

    def _precondition(self, r: Tensor) -> Tensor:
        """P⁻¹ r = r + U ((s·λ_min + δ)/(s·Λ + δ) − 1) Uᵀ r: shrinks the eigenvalues Λ to the smallest."""
        if not self.precondition:
            return r
        values, U = self.H.leading
        precision = self.scale * values + self.prior_precision
        return r + ((r @ U) * (precision.min() / precision - 1)) @ U.T


def _inner(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(1, keepdim=True)


@register(MatrixFree)
def matrix_free(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    precondition: bool = True,
    validation: Pairs | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> MatrixFree:
    """Exact products with H and no matrix; memory grows with m, and every draw is a linear solve.

    Every product with H takes a pass over all pairs, so use a few thousand. The number of iterations of a
    solve grows with √(s·λ/δ), where λ is the largest eigenvalue that the preconditioner leaves: solves with
    the paper's s = 1 and δ = 1e-6 may not converge.

    >>> matrix_free = flare.posteriors.matrix_free(denoiser, subset, pairs, 1.0, 1.0)
    >>> matrix_free.draw(4).shape
    torch.Size([4, 50])

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        tolerance: The relative residual at which a solve ends.
        max_iterations: The number of products after which a solve fails.
        precondition: Whether to precondition with the leading eigenpairs of H.
        validation: Held-out pairs, for prior_precision="validation".
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the products that estimate the determinant, for prior_precision="marglik".
    """
    check_request(prior_precision, scale, validation)
    origin = Origin.of(denoiser, subset, residual_statistics(denoiser, pairs), pairs.schedule)
    H = Products(denoiser, subset, pairs, Resume.of(resume))
    fitted = MatrixFree(origin, 1.0, 1.0, H, tolerance, max_iterations, precondition)
    if prior_precision == "marglik":
        H.quadrature(progress)  # which serves all δ and s
    return choose(fitted, denoiser, prior_precision, scale, validation)
