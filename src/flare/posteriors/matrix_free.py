"""The matrix-free posterior: no m × m matrix and no factors; a draw is a solve.

(s·H + δI) d = √s·n^(−½) Σ_i √w_i J_iᵀ ε_i + √δ·ε' has covariance Σ exactly, and Σ v is the solution
of (s·H + δI) z = v: conjugate gradients on products with H, for all vectors at once, preconditioned by a
low-rank approximation of H (randomized Nyström), which takes its large eigenvalues out. The determinant
is estimated by stochastic Lanczos quadrature, for tuning δ: for random signs v, vᵀ log(s·H + δI) v is a
sum over the eigenpairs of the small tridiagonal matrix of Lanczos' method, whatever s and δ are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.distributed import broadcast
from ..core.progress import Progress, watch
from ..core.validation import require_positive_int
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .base import Origin, Posterior, Saved, normal, positive
from .curvature import Products, residual_statistics
from .tuning import Number, tune

PROBES, LANCZOS_STEPS = 4, 100  # of the quadrature: at most 100 products with 4 vectors each
PRECONDITIONER_RANK = 64  # eigenpairs of H that the preconditioner takes out
BASIS_BYTES = 2**30  # that the vectors of either may take


@dataclass(frozen=True)
class Solve:
    """How a solve went: iterations, and the largest relative residual ‖b − (sH+δ)x‖/‖b‖."""

    iterations: int
    residual: float


class MatrixFree(Posterior):
    """Σ by conjugate gradients.

    Attributes:
        products: H as what it does to vectors; it holds the network and the pairs.
        precondition: whether the large eigenvalues of H are taken out of a solve.
        tolerance: the relative residual at which a solve ends.
        max_iterations: the number of products after which it gives up, with an error.
        last_solve: how the last solve went.
    """

    structure = "matrix_free"

    def __init__(
        self,
        origin: Origin,
        products: Products,
        prior_precision: float,
        scale: float,
        tolerance: float,
        max_iterations: int,
        precondition: bool,
    ) -> None:
        super().__init__(origin, prior_precision, scale)
        self.products, self.precondition = products, precondition
        self.tolerance = positive("tolerance", tolerance)
        self.max_iterations = require_positive_int("max_iterations", max_iterations)
        self.last_solve: Solve | None = None
        # of H, so shared with every `refit`, which copies this object; filled when they are first needed
        self._spectrum: list[tuple[Tensor, Tensor]] = []
        self._leading: list[tuple[Tensor, Tensor]] = []

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Perturb and solve."""
        data = self.scale**0.5 * self.products.noise(k, generator)
        prior = self.prior_precision**0.5 * normal(k, self.size, generator)
        return self._solve(data + prior)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v by one solve: the conjugate-gradient route to gᵀ Σ g."""
        flat = v.reshape(-1, self.size).double()
        return self._solve(flat).reshape(v.shape).to(v.dtype)

    def log_det_precision(self) -> float:
        """log det(s·H + δ·I), estimated: (m/P) Σ_p Σ_k τ_pk² log(s·θ_pk + δ) over P random probes."""
        self.tabulate_spectrum()
        nodes, weights = self._spectrum[0]
        values = (self.scale * nodes.clamp(min=0) + self.prior_precision).log()
        return float((weights * values).sum() * self.size / len(nodes))

    def tabulate_spectrum(self, progress: Progress | bool | None = None) -> None:
        """Compute the quadrature that `log_det_precision` needs, once for all δ and s."""
        if not self._spectrum:
            self._spectrum.append(self._quadrature(progress))

    def _quadrature(self, progress: Progress | bool | None) -> tuple[Tensor, Tensor]:
        """Nodes θ and weights τ² of P quadratures of H, (P, steps) each, by Lanczos' method."""
        coins = torch.randint(0, 2, (PROBES, self.size), generator=torch.Generator().manual_seed(0))
        v = (2 * coins - 1).double() / self.size**0.5
        steps = min(LANCZOS_STEPS, self.size, max(20, BASIS_BYTES // (8 * PROBES * self.size)))
        basis = v.new_zeros(steps, *v.shape)
        diagonal, beside = [], []
        for k in watch(iter(range(steps)), steps, progress):
            basis[k] = v
            w = self.products(v)
            diagonal.append((w * v).sum(1, keepdim=True))
            # against all vectors so far: rounding turns them back into those of large eigenvalues
            w = w - torch.einsum("kp,kpm->pm", torch.einsum("pm,kpm->kp", w, basis), basis)
            beside.append(w.norm(dim=1, keepdim=True))
            # a zero: an invariant subspace is exhausted, and what comes after has no weight
            v = w / beside[-1].clamp(min=torch.finfo(v.dtype).tiny ** 0.5)
        off = torch.cat(beside[:-1], 1)
        T = torch.diag_embed(torch.cat(diagonal, 1)) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        nodes, vectors = torch.linalg.eigh(T)
        return nodes, vectors[:, 0].square()

    def _preconditioner(self) -> Callable[[Tensor], Tensor]:
        """P⁻¹ r = r + U ((s·λ_min + δ)/(s·Λ + δ) − 1) Uᵀ r: large eigenvalues become like the smallest."""
        if not self.precondition:
            return lambda r: r
        if not self._leading:
            self._leading.append(self._nystrom())
        values, U = self._leading[0]
        precision = self.scale * values + self.prior_precision
        factor = precision.min() / precision - 1
        return lambda r: r + ((r @ U) * factor) @ U.T

    def _nystrom(self) -> tuple[Tensor, Tensor]:
        """Leading eigenpairs (r,), (m, r) of H ≈ Y (Ωᵀ Y)⁻¹ Yᵀ with Y = H Ω for random Ω: one product."""
        rank = min(PRECONDITIONER_RANK, self.size, max(1, BASIS_BYTES // (8 * self.size)))
        generator = torch.Generator().manual_seed(1)
        basis = torch.linalg.qr(normal(rank, self.size, generator).T).Q
        image = self.products(basis.T).T
        shift = torch.finfo(image.dtype).eps * image.norm()
        image = image + shift * basis
        core, Q = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
        found = core > 1e-10 * core[-1]
        U, roots, _ = torch.linalg.svd(image @ (Q[:, found] / core[found].sqrt()), full_matrices=False)
        return (roots.square() - shift).clamp(min=0), U

    def _solve(self, b: Tensor) -> Tensor:
        """X with (s·H + δ) x = b for rows b (K, m); each row has its own step lengths."""

        def inner(u: Tensor, v: Tensor) -> Tensor:
            return (u * v).sum(1, keepdim=True)

        b = broadcast(b)  # draws without a generator differ
        tiny = torch.finfo(b.dtype).tiny
        inverse = self._preconditioner()
        norm = b.norm(dim=1, keepdim=True).clamp(min=tiny)
        x, r = torch.zeros_like(b), b
        p = z = inverse(r)
        rz = inner(r, z)
        iteration, residual = 0, math.inf
        while residual > self.tolerance and iteration < self.max_iterations:
            q = self.scale * self.products(p) + self.prior_precision * p
            step = rz / inner(p, q).clamp(min=tiny)  # 0/tiny: a row that has converged stays
            x, r = x + step * p, r - step * q
            z, before = inverse(r), rz
            rz = inner(r, z)
            p = z + rz / before.clamp(min=tiny) * p
            residual = float(
                broadcast((r.norm(dim=1, keepdim=True) / norm).max())
            )  # all stop at the same step
            iteration += 1
        self.last_solve = Solve(iteration, residual)
        if not residual <= self.tolerance:
            raise RuntimeError(
                f"conjugate gradients did not converge: relative residual {residual:.2e} after {iteration} "
                f"iterations, asked for {self.tolerance:.0e}. Raise prior_precision (now "
                f"{self.prior_precision:.2g}), max_iterations or tolerance, or use a float64 network."
            )
        return x

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the network and the pairs are given again on loading."""
        return {}

    def extra(self) -> dict[str, Any]:
        """The settings of the solver."""
        return {
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
            "precondition": self.precondition,
            "pairs": self.products.fingerprint,
        }

    @classmethod
    def restore(cls, saved: Saved) -> MatrixFree:
        """Make it again from the file, the network and the pairs."""
        if saved.denoiser is None or saved.pairs is None:
            raise ValueError(
                f"{saved.path} is a matrix-free posterior: it needs its network and training pairs again, "
                "load(path, denoiser=..., pairs=...)."
            )
        products = Products(saved.denoiser, saved.origin.subset, saved.pairs)
        if products.fingerprint != saved.meta["pairs"]:
            raise ValueError(
                f"{saved.path} was fitted to other training pairs; give the same data, n and seed."
            )
        settings = {key: saved.meta[key] for key in ("tolerance", "max_iterations")}
        precondition = bool(saved.meta.get("precondition", True))  # files of earlier versions do not say
        return cls(saved.origin, products, **saved.numbers, **settings, precondition=precondition)


def matrix_free(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    precondition: bool = True,
    validation: Pairs | None = None,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> MatrixFree:
    """The matrix-free posterior: works with all parameters; memory grows with m alone.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs; every product with H walks them, so a few thousand will do.
        prior_precision: δ: a number, "marglik" or "validation". The number of iterations of a solve grows
            with √(s·λ/δ), λ the largest eigenvalue that the preconditioner leaves: the paper's s = 1,
            δ = 1e-6 may be out of reach.
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        tolerance: the relative residual at which a solve ends.
        max_iterations: products after which a solve gives up with an error.
        precondition: whether to take the leading eigenvalues of H out of a solve; `benchmarks/solves.py`
            compares the numbers of iterations.
        validation: held-out pairs, for prior_precision="validation".
        resume: where the products of a tuned δ are kept as they grow; an identical call resumes from there.
        progress: wraps the steps of the quadrature that tunes δ.
    """
    fitted = MatrixFree(
        Origin.of(denoiser, subset, residual_statistics(denoiser, pairs), pairs.schedule),
        Products(denoiser, subset, pairs, resume),
        1.0,
        1.0,
        tolerance,
        max_iterations,
        precondition,
    )
    if prior_precision == "marglik":
        fitted.tabulate_spectrum(progress)
    return tune(fitted, denoiser, prior_precision, scale, validation)
