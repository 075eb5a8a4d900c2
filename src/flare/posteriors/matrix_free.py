"""The matrix-free posterior: no m × m matrix and no factors; a draw is a solve.

(s·H + δI) d = √s·n^(−½) Σ_i √w_i J_iᵀ ε_i + √δ·ε' has covariance Σ exactly, and Σ v is the solution
of (s·H + δI) z = v: conjugate gradients on products with H, for all vectors at once. The determinant, which
tuning δ needs, is estimated by stochastic Lanczos quadrature: for random signs v, vᵀ log(s·H + δI) v is a
sum over the eigenpairs of the small tridiagonal matrix of Lanczos' method, whatever s and δ are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import positive_int
from ..curvature import Products, ggn, residual_statistics
from ..denoiser import Denoiser
from ..distributed import of_main
from ..noising import Pairs
from ..progress import Progress
from ..shards import Shards
from ..subsets import Subset
from .base import Origin, Posterior, Saved, normal, positive
from .tuning import Number, tuned

PROBES, LANCZOS_STEPS = 4, 100  # of the quadrature: at most 100 products with 4 vectors each
BASIS_BYTES = 2**30  # that its vectors may take


@dataclass(frozen=True)
class Solve:
    """How a solve went: iterations, and the largest relative residual ‖b − (sH+δ)x‖/‖b‖."""

    iterations: int
    residual: float


class MatrixFree(Posterior):
    """Σ by conjugate gradients, preconditioned by the diagonal of s·H + δ if asked.

    Attributes:
        products: H as what it does to vectors; it holds the network and the pairs.
        diagonal: an estimate of diag H, (m,), or zeros to leave the preconditioner out.
        tolerance: the relative residual at which a solve ends.
        max_iterations: the number of products after which it gives up, with an error.
        last_solve: how the last solve went.
    """

    structure = "matrix_free"

    def __init__(
        self,
        origin: Origin,
        products: Products,
        diagonal: Tensor,
        prior_precision: float,
        scale: float,
        tolerance: float,
        max_iterations: int,
    ) -> None:
        super().__init__(origin, prior_precision, scale)
        self.products, self.diagonal = products, diagonal
        self.tolerance = positive("tolerance", tolerance)
        self.max_iterations = positive_int("max_iterations", max_iterations)
        self.last_solve: Solve | None = None
        # of H, so shared with every `refit`, which copies this object; filled when it is first needed
        self._spectrum: list[tuple[Tensor, Tensor]] = []

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
        if not self._spectrum:
            self._spectrum.append(self._quadrature())
        nodes, weights = self._spectrum[0]
        values = (self.scale * nodes.clamp(min=0) + self.prior_precision).log()
        return float((weights * values).sum() * self.size / len(nodes))

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """Nodes θ and weights τ² of P quadratures of H, (P, steps) each, by Lanczos' method."""
        coins = torch.randint(0, 2, (PROBES, self.size), generator=torch.Generator().manual_seed(0))
        v = (2 * coins - 1).double() / self.size**0.5
        steps = min(LANCZOS_STEPS, self.size, max(20, BASIS_BYTES // (8 * PROBES * self.size)))
        basis = v.new_zeros(steps, *v.shape)
        diagonal, beside = [], []
        for k in range(steps):
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

    def _solve(self, b: Tensor) -> Tensor:
        """X with (s·H + δ) x = b for rows b (K, m); each row has its own step lengths."""

        def inner(u: Tensor, v: Tensor) -> Tensor:
            return (u * v).sum(1, keepdim=True)

        b = of_main(b)  # draws without a generator differ
        tiny = torch.finfo(b.dtype).tiny
        inverse = 1 / (self.scale * self.diagonal + self.prior_precision)
        norm = b.norm(dim=1, keepdim=True).clamp(min=tiny)
        x, r = torch.zeros_like(b), b
        p = z = inverse * r
        rz = inner(r, z)
        iteration, residual = 0, math.inf
        while residual > self.tolerance and iteration < self.max_iterations:
            q = self.scale * self.products(p) + self.prior_precision * p
            step = rz / inner(p, q).clamp(min=tiny)  # 0/tiny: a row that has converged stays
            x, r = x + step * p, r - step * q
            z, before = inverse * r, rz
            rz = inner(r, z)
            p = z + rz / before.clamp(min=tiny) * p
            residual = float(of_main((r.norm(dim=1, keepdim=True) / norm).max()))  # all stop at the same step
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
        """The diagonal; the network and the pairs are given again on loading."""
        return {"diagonal": self.diagonal}

    def expected(self) -> dict[str, tuple[int, ...]]:
        """(m,)."""
        return {"diagonal": (self.size,)}

    def extra(self) -> dict[str, Any]:
        """The settings of the solver."""
        return {
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
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
        return cls(saved.origin, products, saved.tensors["diagonal"], **saved.numbers, **settings)


def matrix_free(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    precondition: bool = False,
    validation: Pairs | None = None,
    keep: Shards | None = None,
    progress: Progress | bool | None = None,
) -> MatrixFree:
    """The matrix-free posterior: works with all parameters; memory grows with m alone.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs; every product with H walks them, so a few thousand will do.
        prior_precision: δ: a number, "marglik" or "validation". The number of iterations of a solve grows
            with √(s·λ_max/δ): the paper's s = 1, δ = 1e-6 may be out of reach.
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        tolerance: the relative residual at which a solve ends.
        max_iterations: products after which a solve gives up with an error.
        precondition: whether to precondition by the diagonal. It helps where the parameters' scales
            differ; on the benchmark networks it costs iterations (see `benchmarks/solves.py`).
        validation: held-out pairs, for prior_precision="validation".
        keep: where the sum of diag H is kept as it grows; a fit like one that was killed goes on from there.
        progress: wraps the batches of the pass that estimates diag H.
    """
    if precondition:
        h, statistics = ggn(denoiser, subset, pairs, probes=1, diagonal=True, keep=keep, progress=progress)
    else:
        h, statistics = torch.zeros(subset.size, dtype=torch.float64), residual_statistics(denoiser, pairs)
    fitted = MatrixFree(
        Origin.of(denoiser, subset, statistics, pairs.schedule),
        Products(denoiser, subset, pairs, keep),
        h,
        1.0,
        1.0,
        tolerance,
        max_iterations,
    )
    return tuned(fitted, denoiser, prior_precision, scale, validation)
