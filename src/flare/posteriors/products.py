"""Products with H and noise of covariance H, without an m × m matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from ..autodiff.jvp import Push, prepare
from ..autodiff.vjp import pull
from ..core import distributed
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .accumulate import accumulate, batch_source, batches, column


class Products:
    """H as a linear operator: H v = (1/n) Σ_i w_i J_iᵀ (J_i v).

    In a process group each process handles its share of the batches, so all processes must request the same
    products.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs; they stay in memory, because every product needs all of them.
        resume: where to keep checkpoints of the sums of a product.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset, pairs: Pairs, resume: Resume | None = None
    ) -> None:
        denoiser = denoiser.wide()
        self.denoiser, self.subset, self.pairs = denoiser, subset, pairs
        draw = batch_source(denoiser, pairs)
        self.batches = {index: draw(index) for index in distributed.own_items(range(len(pairs)))}
        first = draw(0)
        # in float64 by default: Lanczos' method and conjugate gradients amplify the rounding of products
        self._precise = prepare(
            denoiser, subset, "auto", first.x, first.t[0].item(), first.cond,
            instead="a dense or diagonal posterior, which needs no forward-mode derivative",
        )  # fmt: skip
        self._resume = resume and resume.for_job("product", denoiser.fingerprint(), subset, pairs)

    @property
    def fingerprint(self) -> str:
        """A hash of the pairs."""
        digest = hashlib.sha256()
        for batch in batches(self.denoiser, self.pairs):
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
        for index, batch in accumulate(self.batches.__getitem__, len(self.pairs), {"product": total}, resume):
            x, u = batch.x.to(self._precise.dtype), cotangents(index, batch).to(self._precise.dtype)
            total += pull(self._precise, self.subset, x, batch.t, u, batch.cond).double().cpu()
        return total / self.pairs.n
