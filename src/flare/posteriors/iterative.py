"""Iterative linear algebra with products: conjugate gradients, a preconditioner, Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributed import broadcast
from ..core.progress import Progress, watch
from ..core.validation import require_positive_int
from .base import normal, positive

Product = Callable[[Tensor], Tensor]  # rows (k, m) -> (k, m)
PROBES, LANCZOS_STEPS = 4, 100  # of the quadrature: at most 100 products with 4 vectors each
PRECONDITIONER_RANK = 64  # eigenpairs of H in the preconditioner
BASIS_BYTES = 2**30  # memory limit of the basis vectors of the quadrature, and of the preconditioner


@dataclass(frozen=True)
class Solver:
    """Settings of conjugate gradients.

    Attributes:
        tolerance: the relative residual at which a solve ends.
        max_iterations: the number of products after which a solve fails.
        precondition: whether to precondition with the leading eigenpairs of H.
    """

    tolerance: float = 1e-3
    max_iterations: int = 1000
    precondition: bool = True

    def __post_init__(self) -> None:
        positive("tolerance", self.tolerance)
        require_positive_int("max_iterations", self.max_iterations)


@dataclass(frozen=True)
class Solve:
    """The outcome of a solve: its iterations, and the largest relative residual ‖b − (sH+δ)x‖/‖b‖."""

    iterations: int
    residual: float


def solve(matrix: Product, b: Tensor, inverse: Product, solver: Solver) -> tuple[Tensor, Solve]:
    """Solve matrix·x = b for rows b (k, m) by conjugate gradients; each row has its own step lengths.

    Args:
        matrix: products with a positive definite matrix.
        b: the right-hand sides.
        inverse: products with the preconditioner, an approximate inverse.
        solver: the settings.
    """
    b = broadcast(b)  # draws without a generator differ between processes
    tiny = torch.finfo(b.dtype).tiny
    norm = b.norm(dim=1, keepdim=True).clamp(min=tiny)
    x, r = torch.zeros_like(b), b
    p = z = inverse(r)
    rz = _inner(r, z)
    iteration, residual = 0, math.inf
    while residual > solver.tolerance and iteration < solver.max_iterations:
        q = matrix(p)
        step = rz / _inner(p, q).clamp(min=tiny)  # 0/tiny: a row that has converged does not change
        x, r = x + step * p, r - step * q
        z, before = inverse(r), rz
        rz = _inner(r, z)
        p = z + rz / before.clamp(min=tiny) * p
        # broadcast: all processes must stop at the same iteration
        residual = float(broadcast((r.norm(dim=1, keepdim=True) / norm).max()))
        iteration += 1
    return x, Solve(iteration, residual)


def _inner(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(1, keepdim=True)


def approximate_leading(products: Product, m: int) -> tuple[Tensor, Tensor]:
    """Leading eigenpairs (r,), (m, r) of H ≈ Y (Ωᵀ Y)⁻¹ Yᵀ, Y = H Ω for random Ω (Nyström): one product."""
    rank = min(PRECONDITIONER_RANK, m, max(1, BASIS_BYTES // (8 * m)))
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(normal(rank, m, generator).T).Q
    image = products(basis.T).T
    shift = torch.finfo(image.dtype).eps * image.norm()
    image = image + shift * basis
    core, Q = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    found = core > 1e-10 * core[-1]
    U, roots, _ = torch.linalg.svd(image @ (Q[:, found] / core[found].sqrt()), full_matrices=False)
    return (roots.square() - shift).clamp(min=0), U


def tabulate_spectrum(
    products: Product, m: int, progress: Progress | bool | None = None
) -> tuple[Tensor, Tensor]:
    """Nodes θ and weights τ² of P quadratures of H, (P, steps) each, by Lanczos' method."""
    coins = torch.randint(0, 2, (PROBES, m), generator=torch.Generator().manual_seed(0))
    v = (2 * coins - 1).double() / m**0.5
    steps = min(LANCZOS_STEPS, m, max(20, BASIS_BYTES // (8 * PROBES * m)))
    basis = v.new_zeros(steps, *v.shape)
    diagonal, beside = [], []
    for k in watch((k for k in range(steps)), steps, progress):
        basis[k] = v
        w = products(v)
        diagonal.append((w * v).sum(1, keepdim=True))
        # orthogonalize against all vectors so far: rounding reintroduces those of large eigenvalues
        w = w - torch.einsum("kp,kpm->pm", torch.einsum("pm,kpm->kp", w, basis), basis)
        beside.append(w.norm(dim=1, keepdim=True))
        # zero if an invariant subspace is exhausted; later vectors then have no weight
        v = w / beside[-1].clamp(min=torch.finfo(v.dtype).tiny ** 0.5)
    off = torch.cat(beside[:-1], 1)
    T = torch.diag_embed(torch.cat(diagonal, 1)) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    nodes, vectors = torch.linalg.eigh(T)
    return nodes, vectors[:, 0].square()
