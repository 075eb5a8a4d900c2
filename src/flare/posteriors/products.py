"""H without an m × m matrix: products with vectors, noise of covariance H, and estimates from products."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ..autodiff.jvp import Push, prepare
from ..autodiff.vjp import pull
from ..core import distributed
from ..core.progress import Progress, watch
from ..diffusion.noising import Batch, Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..storage.resume import Resume
from .curvature import accumulate, batch_source, column
from .posterior import normal

PROBES, LANCZOS_STEPS = 4, 100  # of the quadrature: at most 100 products with 4 vectors each
PRECONDITIONER_RANK = 64  # eigenpairs of H in the preconditioner
BASIS_BYTES = 2**30  # memory limit of the basis vectors of the quadrature, and of the preconditioner


class Products:
    """H as a linear operator: H v = (1/n) Σ_i w_i J_iᵀ (J_i v).

    In a process group each process handles its share of the batches, so all processes must request the same
    products.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs; they stay in memory, because every product needs all of them.
        resume: Where to keep checkpoints of the sums of a product.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset, pairs: Pairs, resume: Resume | None = None
    ) -> None:
        denoiser = denoiser.wide()
        self.denoiser, self.subset, self.pairs = denoiser, subset, pairs
        self._draw = batch_source(denoiser, pairs)
        self._batches = {index: self._draw(index) for index in distributed.own_items(range(len(pairs)))}
        first = self._draw(0)
        # in float64 by default: Lanczos' method and conjugate gradients amplify the rounding of products
        self._precise = prepare(
            denoiser, subset, "auto", first.x, first.t[0].item(), first.cond,
            instead="a dense or diagonal posterior, which needs no forward-mode derivative",
        )  # fmt: skip
        self._resume = resume and resume.for_job("product", denoiser.fingerprint(), subset, pairs)
        self._quadrature: tuple[Tensor, Tensor] | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the pairs."""
        digest = hashlib.sha256()
        for batch in map(self._draw, range(len(self.pairs))):
            for value in (batch.x, batch.t, batch.weight):
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __call__(self, vectors: Tensor) -> Tensor:
        """H v for k vectors at once, (k, m) -> (k, m)."""
        push = Push(self._precise, self.subset, vectors.T)
        dtype = self._precise.dtype
        return self._sum(
            len(vectors),
            lambda index, batch: (
                push(batch.x.to(dtype), None, batch.t, batch.cond)[1] * column(batch.weight, batch.x)
            ),
            self._resume and self._resume.for_job(vectors),
        ).to(vectors.dtype)

    def noise(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw vectors with covariance H: n^(−1/2) Σ_i √w_i J_iᵀ ε_i, (count, m)."""
        # one stream over all batches: every process draws all of it and uses its own part
        shape, dtype = self.pairs.data.shape[1:], self.denoiser.dtype
        noise = (
            (index, torch.randn(count, self.pairs.length(index), *shape, generator=generator, dtype=dtype))
            for index in range(len(self.pairs))
        )

        def draw(index: int, batch: Batch) -> Tensor:
            own = next(drawn for place, drawn in noise if place == index)
            return own.to(batch.x.device) * column(batch.weight.sqrt(), batch.x)

        total = self._sum(count, draw)
        for _ in noise:  # leave the generator in the same state in every process
            pass
        return total * self.pairs.n**0.5

    def _sum(
        self, count: int, cotangents: Callable[[int, Batch], Tensor], resume: Resume | None = None
    ) -> Tensor:
        """(1/n) Σ over the batches of Jᵀ u, u = cotangents(index, batch) of shape (count, B, *shape)."""
        total = torch.zeros(count, self.subset.size, dtype=torch.float64)
        sums = {"product": total}
        for index, batch in accumulate(self._batches.__getitem__, len(self.pairs), sums, resume):
            x, u = batch.x.to(self._precise.dtype), cotangents(index, batch).to(self._precise.dtype)
            total += pull(self._precise, self.subset, x, batch.t, u, batch.cond).double().cpu()
        return total / self.pairs.n

    @cached_property
    def leading(self) -> tuple[Tensor, Tensor]:
        """Leading eigenpairs (r,), (m, r) of H ≈ Y (Ωᵀ Y)⁻¹ Yᵀ, Y = H Ω, for random Ω (Nyström)."""
        m = self.subset.size
        rank = min(PRECONDITIONER_RANK, m, max(1, BASIS_BYTES // (8 * m)))
        basis = torch.linalg.qr(normal(rank, m, torch.Generator().manual_seed(1)).T).Q
        image = self(basis.T).T
        shift = torch.finfo(image.dtype).eps * image.norm()
        image = image + shift * basis
        core, Q = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
        found = core > 1e-10 * core[-1]
        U, roots, _ = torch.linalg.svd(image @ (Q[:, found] / core[found].sqrt()), full_matrices=False)
        return (roots.square() - shift).clamp(min=0), U

    def quadrature(self, progress: Progress | bool | None = None) -> tuple[Tensor, Tensor]:
        """Nodes θ and weights τ² of P quadratures of H, (P, steps) each, by Lanczos' method; cached.

        scipy's eigsh does not expose the tridiagonal matrix, whose eigenpairs these are.
        """
        if self._quadrature is not None:
            return self._quadrature
        m = self.subset.size
        coins = torch.randint(0, 2, (PROBES, m), generator=torch.Generator().manual_seed(0))
        v = (2 * coins - 1).double() / m**0.5
        steps = min(LANCZOS_STEPS, m, max(20, BASIS_BYTES // (8 * PROBES * m)))
        basis = v.new_zeros(steps, *v.shape)
        diagonal, beside = [], []
        for k in watch((k for k in range(steps)), steps, progress):
            basis[k] = v
            w = self(v)
            diagonal.append((w * v).sum(1, keepdim=True))
            # orthogonalize against all vectors so far: rounding reintroduces those of large eigenvalues
            w = w - torch.einsum("kp,kpm->pm", torch.einsum("pm,kpm->kp", w, basis), basis)
            beside.append(w.norm(dim=1, keepdim=True))
            # zero if an invariant subspace is exhausted; later vectors then have no weight
            v = w / beside[-1].clamp(min=torch.finfo(v.dtype).tiny ** 0.5)
        off = torch.cat(beside[:-1], 1)
        T = torch.diag_embed(torch.cat(diagonal, 1)) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        nodes, vectors = torch.linalg.eigh(T)
        self._quadrature = nodes, vectors[:, 0].square()
        return self._quadrature
