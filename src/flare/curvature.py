"""The generalized Gauss-Newton matrix over a subset: H = (1/n) Σ_i w_i J_iᵀ J_i, always a mean.

Instead of all d rows of each J_i, k random sign vectors u a pair give (1/k) Σ_u (J_iᵀu)(J_iᵀu)ᵀ,
whose mean is J_iᵀ J_i: more pairs with few probes know more of H than few pairs with all rows, at
the same cost. The empirical Fisher is the same sum with the pair's own residual as its only probe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checks import one_of, positive_int
from .conditions import at
from .denoiser import Denoiser
from .jacobians import chunked, pull, rows
from .noising import Batch, Pairs
from .progress import Progress, watched
from .pushing import Push
from .streams import mix
from .subsets import Subset

KINDS = ("ggn", "fisher")
ROWS_PER_PARAMETER = 8  # what probes="auto" aims at
Probes = int | str | None


@dataclass(frozen=True)
class Statistics:
    """What a pass over the pairs tells besides the curvature.

    Attributes:
        pairs: n, how many pairs were seen.
        data_size: N, the size of the training set.
        dimension: d, the coordinates of a sample.
        residual_variance: σ², the weighted mean square of the network's error, a coordinate.
    """

    pairs: int
    data_size: int
    dimension: int
    residual_variance: float

    @property
    def calibrated_scale(self) -> float:
        """N/σ²: the scale at which s·H is the curvature of the log-likelihood of the whole data."""
        if self.residual_variance <= 0:
            raise ValueError(
                "the residuals are zero: there is nothing to calibrate by; give scale as a number."
            )
        return self.data_size / self.residual_variance


def ggn(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    *,
    probes: Probes = "auto",
    kind: str = "ggn",
    diagonal: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, Statistics]:
    """H over the subset in one pass, accumulated in float64: (m, m), or its diagonal alone, (m,).

    Args:
        denoiser: the network.
        subset: over which parameters.
        pairs: the training pairs.
        probes: k, random probes a pair; None for all d rows (exact); "auto" for as many as give
            `ROWS_PER_PARAMETER` rows a parameter, and at least one.
        kind: `ggn`, or `fisher` for the empirical Fisher: (1/n) Σ w_i² J_iᵀ r_i r_iᵀ J_i / σ², which
            is H on average if the residuals r are N(0, σ²/w).
        diagonal: whether to keep the diagonal alone.
        progress: wraps the batches of pairs.
    """
    one_of("curvature", kind, KINDS)
    m = subset.size
    H = torch.zeros(m if diagonal else (m, m), dtype=torch.float64, device=denoiser.device)
    total = 0.0
    for index, batch in enumerate(watched(batches(denoiser, pairs), len(pairs), progress)):
        residual = denoiser(batch.x, batch.t, batch.cond) - batch.target
        total += _squared_error(batch, residual)
        if kind == "fisher":
            u, scale = residual.unsqueeze(1), batch.weight
        else:
            k = probe_count(probes, pairs.n, m, batch.x[0].numel())
            u, scale = probe(batch.x, k, mix(mix(pairs.seed, 1), index)), batch.weight.sqrt()
        for g in gradients(denoiser, subset, batch, u, scale):
            g = g.double()  # before the product: in float32 rounding makes H indefinite at the level of 1e-7
            H += g.square().sum(0) if diagonal else g.T @ g
    statistics = _statistics(pairs, total)
    H /= pairs.n * (statistics.residual_variance if kind == "fisher" else 1.0)
    if not torch.isfinite(H).all():
        raise ValueError(
            f"the curvature of {denoiser.name} has NaN or infinity; look for the cause with "
            "denoiser.check(x, t) on its training pairs."
        )
    return H.cpu(), statistics


def residual_statistics(denoiser: Denoiser, pairs: Pairs) -> Statistics:
    """The statistics alone, for what is fitted without `ggn`: one forward pass over the pairs."""
    return _statistics(
        pairs,
        sum(
            _squared_error(batch, denoiser(batch.x, batch.t, batch.cond) - batch.target)
            for batch in batches(denoiser, pairs)
        ),
    )


def _squared_error(batch: Batch, residual: Tensor) -> float:
    """Σ_b w_b·‖r_b‖²/d."""
    return float((batch.weight * residual.flatten(1).square().mean(1)).sum())


def _statistics(pairs: Pairs, squared_error: float) -> Statistics:
    return Statistics(pairs.n, len(pairs.data), pairs.data[0].numel(), squared_error / pairs.n)


def probe_count(probes: Probes, n: int, m: int, d: int) -> int | None:
    """How many random probes a pair; None where all d rows are as cheap."""
    if probes == "auto":
        probes = -(-ROWS_PER_PARAMETER * m // n)
    if probes is None:
        return None
    if isinstance(probes, str):
        raise ValueError(f"probes must be a number, 'auto', or None for all rows, got {probes!r}.")
    return k if (k := positive_int("probes", probes)) < d else None


def probe(x: Tensor, k: int | None, seed: int) -> Tensor:
    """Probes u (B, k, *shape) with mean Σ_k u uᵀ = I: all d unit vectors, or k random sign vectors /√k."""
    if k is None:
        d = x[0].numel()
        unit = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
        return unit.expand(len(x), *unit.shape)
    generator = torch.Generator().manual_seed(seed)
    coins = torch.randint(0, 2, (len(x), k, *x.shape[1:]), generator=generator)
    return (2 * coins - 1).to(x) / k**0.5


def gradients(denoiser: Denoiser, subset: Subset, batch: Batch, u: Tensor, scale: Tensor) -> Iterator[Tensor]:
    """scale_b·J_bᵀ u_{b,k} as rows (·, m), in chunks that fit the memory."""
    for here, some in chunked(denoiser, subset, len(batch), u.shape[1]):
        g, _ = rows(denoiser, subset, batch.x[here], batch.t[here], u[here, some], at(batch.cond, here))
        yield (g * scale[here, None, None]).flatten(0, 1)


def batches(denoiser: Denoiser, pairs: Pairs) -> Iterator[Batch]:
    """The pairs in the network's dtype and on its device."""
    for batch in pairs.batches(denoiser.prediction, denoiser.dtype):
        yield batch.to(denoiser.device)


class Products:
    """H as what it does to vectors: H v = (1/n) Σ_i w_i J_iᵀ (J_i v), without any m × m matrix.

    Args:
        denoiser: the network.
        subset: over which parameters.
        pairs: the training pairs; they are kept in memory, since every product walks them.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, pairs: Pairs) -> None:
        self.denoiser, self.subset, self.n = denoiser, subset, pairs.n
        self.batches = list(batches(denoiser, pairs))

    @property
    def fingerprint(self) -> str:
        """A hash of the pairs."""
        digest = hashlib.sha256()
        for batch in self.batches:
            for value in (batch.x, batch.t, batch.weight):
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __call__(self, vectors: Tensor) -> Tensor:
        """H v for K vectors at once, (K, m) -> (K, m)."""
        push = Push(self.denoiser, self.subset, vectors.T)
        return self._sum(
            lambda batch: push(batch.x, None, batch.t, batch.cond)[1] * column(batch.weight, batch.x)
        ).to(vectors.dtype)

    def noise(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Vectors with covariance H: n^(−1/2) Σ_i √w_i J_iᵀ ε_i, (count, m)."""

        def draw(batch: Batch) -> Tensor:
            noise = torch.randn(count, *batch.x.shape, generator=generator, dtype=batch.x.dtype)
            return noise.to(batch.x.device) * column(batch.weight.sqrt(), batch.x)

        return self._sum(draw) * self.n**0.5

    def _sum(self, cotangents: Any) -> Tensor:
        """(1/n) Σ over the batches of Jᵀ u, u = cotangents(batch) of shape (K, B, *shape)."""
        total: Any = 0.0
        for batch in self.batches:
            u = cotangents(batch)
            total = total + pull(self.denoiser, self.subset, batch.x, batch.t, u, batch.cond).double().cpu()
        return total / self.n


def column(weight: Tensor, x: Tensor) -> Tensor:
    """A weight a sample, (B,), as it multiplies x (B, ...)."""
    return weight.view(-1, *[1] * (x.ndim - 1))
