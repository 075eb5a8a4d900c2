"""The matrix-free posterior: no m × m matrix and no factors; every draw is a linear solve.

The solution d of (s·H + δI) d = √s·n^(−½) Σ_i √w_i J_iᵀ ε_i + √δ·ε' has covariance Σ exactly, and Σ v is the
solution z of (s·H + δI) z = v. Both are solved by conjugate gradients on products with H, for all vectors at
once, preconditioned with the leading eigenpairs of H (randomized Nyström). To tune δ, the determinant is
estimated by stochastic Lanczos quadrature: for random signs v, vᵀ log(s·H + δI) v is a sum over the
eigenpairs of the small tridiagonal matrix of Lanczos' method, which does not depend on s and δ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.progress import Progress
from .base import Posterior, normal
from .curvature import Curvature
from .ggn import residual_statistics
from .iterative import Product, Solve, Solver, approximate_leading, solve, tabulate_spectrum
from .products import Products
from .structure import STRUCTURES, FitInputs, Structure

if TYPE_CHECKING:
    from .files import Saved


@dataclass(eq=False)
class MatrixFreeCurvature(Curvature["MatrixFree"]):
    """H as products with vectors.

    Attributes:
        products: the products; they hold the network and the pairs.
        solver: the settings of conjugate gradients.
    """

    structure = "matrix_free"

    products: Products
    solver: Solver = field(default_factory=Solver)
    _spectrum: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    @cached_property
    def leading(self) -> tuple[Tensor, Tensor]:
        """Approximate leading eigenpairs of H, (r,) and (m, r), computed when first needed."""
        return approximate_leading(self.products, self.size)

    @property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the quadrature of H, (P, steps) each, computed when first needed."""
        if self._spectrum is None:
            self._spectrum = tabulate_spectrum(self.products, self.size)
        return self._spectrum

    def prepare_determinant(self, progress: Progress | bool | None = None) -> None:
        """Compute the quadrature of H, which serves all δ and s."""
        if self._spectrum is None:
            self._spectrum = tabulate_spectrum(self.products, self.size, progress)

    def posterior(self, prior_precision: float, scale: float) -> MatrixFree:
        """The posterior with this H."""
        return MatrixFree(self, prior_precision, scale)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the network and the pairs are given again on loading."""
        return {}

    def metadata(self) -> dict[str, Any]:
        """The settings of the solver, and a hash of the pairs."""
        return {**asdict(self.solver), "pairs": self.products.fingerprint}

    @classmethod
    def restore(cls, saved: Saved) -> MatrixFreeCurvature:
        """Rebuild the products from the network and the pairs."""
        if saved.denoiser is None or saved.pairs is None:
            raise ValueError(
                "it needs its network and training pairs again: load(path, denoiser=..., pairs=...)."
            )
        products = Products(saved.denoiser, saved.origin.subset, saved.pairs)
        if products.fingerprint != saved.meta["pairs"]:
            raise ValueError("it was fitted to other training pairs; give the same data, n and seed.")
        precondition = bool(saved.meta.get("precondition", True))  # absent in files of earlier versions
        solver = Solver(saved.meta["tolerance"], saved.meta["max_iterations"], precondition)
        return cls(saved.origin, products, solver)


class MatrixFree(Posterior):
    """Σ by conjugate gradients.

    Attributes:
        last_solve: the outcome of the last solve.
    """

    curvature: MatrixFreeCurvature
    needs_all_processes = True
    last_solve: Solve | None = None

    @property
    def tolerance(self) -> float:
        """The relative residual at which a solve ends; chosen when the posterior is fitted."""
        return self.curvature.solver.tolerance

    @property
    def max_iterations(self) -> int:
        """The number of products after which a solve fails; chosen when the posterior is fitted."""
        return self.curvature.solver.max_iterations

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Solve for random right-hand sides with covariance s·H + δI."""
        data = self.scale**0.5 * self.curvature.products.noise(k, generator)
        prior = self.prior_precision**0.5 * normal(k, self.size, generator)
        return self._solve(data + prior)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v by one solve."""
        flat = v.reshape(-1, self.size).double()
        return self._solve(flat).reshape(v.shape).to(v.dtype)

    def log_det_precision(self) -> float:
        """log det(s·H + δ·I), estimated: (m/P) Σ_p Σ_k τ_pk² log(s·θ_pk + δ) over P random probes."""
        nodes, weights = self.curvature.spectrum
        values = (self.scale * nodes.clamp(min=0) + self.prior_precision).log()
        return float((weights * values).sum() * self.size / len(nodes))

    def _multiply(self, p: Tensor) -> Tensor:
        """(s·H + δ) p."""
        return self.scale * self.curvature.products(p) + self.prior_precision * p

    def _preconditioner(self) -> Product:
        """P⁻¹ r = r + U ((s·λ_min + δ)/(s·Λ + δ) − 1) Uᵀ r: shrinks the eigenvalues Λ to the smallest."""
        if not self.curvature.solver.precondition:
            return lambda r: r
        values, U = self.curvature.leading
        precision = self.scale * values + self.prior_precision
        factor = precision.min() / precision - 1
        return lambda r: r + ((r @ U) * factor) @ U.T

    def _solve(self, b: Tensor) -> Tensor:
        """Return x with (s·H + δ) x = b for rows b (k, m)."""
        solver = self.curvature.solver
        x, self.last_solve = solve(self._multiply, b, self._preconditioner(), solver)
        if not self.last_solve.residual <= solver.tolerance:
            raise RuntimeError(
                f"conjugate gradients did not converge: relative residual {self.last_solve.residual:.2e} "
                f"after {self.last_solve.iterations} iterations, but tolerance is {solver.tolerance:.0e}. "
                f"Raise prior_precision (now {self.prior_precision:.2g}), max_iterations or tolerance, or "
                "use a float64 network."
            )
        return x


def compute_matrix_free(
    inputs: FitInputs, *, tolerance: float = 1e-3, max_iterations: int = 1000, precondition: bool = True
) -> MatrixFreeCurvature:
    """Exact products with H and no matrix; memory grows with m, and every draw is a linear solve.

    Every product with H walks all pairs, so use a few thousand. The number of iterations of a solve grows
    with √(s·λ/δ), where λ is the largest eigenvalue that the preconditioner leaves: solves with the paper's
    s = 1 and δ = 1e-6 may not converge.

    >>> matrix_free = flare.posteriors.matrix_free(denoiser, subset, pairs, 1.0, 1.0)
    >>> matrix_free.draw(4).shape
    torch.Size([4, 50])

    Args:
        inputs: the network, the subset and the pairs.
        tolerance: the relative residual at which a solve ends.
        max_iterations: the number of products after which a solve fails.
        precondition: whether to precondition with the leading eigenpairs of H; `benchmarks/solves.py`
            compares the numbers of iterations.
    """
    solver = Solver(tolerance, max_iterations, precondition)
    origin = inputs.origin(residual_statistics(inputs.denoiser, inputs.pairs))
    products = Products(inputs.denoiser, inputs.subset, inputs.pairs, inputs.resume)
    return MatrixFreeCurvature(origin, products, solver)


matrix_free = STRUCTURES.register(Structure(MatrixFreeCurvature, compute_matrix_free))
