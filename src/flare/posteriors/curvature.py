"""The generalized Gauss-Newton matrix over a subset: H = (1/n) Σ_i w_i J_iᵀ J_i, always a mean.

Instead of all d rows of each J_i, k random sign vectors u a pair give (1/k) Σ_u (J_iᵀu)(J_iᵀu)ᵀ,
whose mean is J_iᵀ J_i. H itself is as true as it has rows, wherever they come from; scores and their
ranking gain more from pairs than from rows (docs/performance.md). The empirical Fisher is the same sum
with the pair's own residual as its only probe.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..autodiff.jvp import Push, prepare
from ..autodiff.vjp import pull, pull_rows, split_chunks
from ..core import distributed
from ..core.conditions import take_rows
from ..core.noise_streams import mix_seed
from ..core.progress import Progress
from ..core.validation import one_of, require_positive_int
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .accumulate import accumulate, batch_source, batches

KINDS = ("ggn", "fisher")
STRIP = 512  # columns of H that are added to at once
HOPELESS = 2.0  # errors above that of answering zero, from which on a fit warns
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
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Tensor, Statistics]:
    """H over the subset in one pass, accumulated in float64: (m, m), or its diagonal alone, (m,).

    In a process group the batches are shared out, and all processes get the same H.

    Args:
        denoiser: the network.
        subset: over which parameters.
        pairs: the training pairs.
        probes: k, random probes a pair; None for all d rows (exact); "auto" for as many as give
            `ROWS_PER_PARAMETER` rows a parameter, and at least one.
        kind: `ggn`, or `fisher` for the empirical Fisher: (1/n) Σ w_i² J_iᵀ r_i r_iᵀ J_i / σ², which
            is H on average if the residuals r are N(0, σ²/w).
        diagonal: whether to keep the diagonal alone.
        resume: where the sum is kept as it grows; a call like one that was killed goes on from there.
        progress: wraps the batches of pairs.
    """
    one_of("curvature", kind, KINDS)
    denoiser = denoiser.wide()
    m = subset.size
    H = torch.zeros(m if diagonal else (m, m), dtype=torch.float64, device=denoiser.device)
    total, blank = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    if resume is not None:
        resume = resume.of("ggn", denoiser.fingerprint(), subset, pairs, probes, kind, diagonal)
    sums = {"H": H, "squared_error": total, "squared_target": blank}
    for index, batch in accumulate(batch_source(denoiser, pairs), len(pairs), sums, resume, progress):
        residual = denoiser(batch.x, batch.t, batch.cond) - batch.target
        total += _weighted_square(batch, residual)
        blank += _weighted_square(batch, batch.target)
        if kind == "fisher":
            u, scale = residual.unsqueeze(1), batch.weight
        else:
            k = probe_count(probes, pairs.n, m, batch.x[0].numel())
            u, scale = probe(batch.x, k, mix_seed(mix_seed(pairs.seed, 1), index)), batch.weight.sqrt()
        for g in gradients(denoiser, subset, batch, u, scale):
            g = g.double()  # before the product: in float32 rounding makes H indefinite at the level of 1e-7
            if diagonal:
                H += g.square().sum(0)
            else:
                _add_gram(H, g)
    statistics = _statistics(denoiser, pairs, float(total), float(blank))
    if not diagonal:
        _mirror(H)
    H /= pairs.n * (statistics.residual_variance if kind == "fisher" else 1.0)
    if not torch.isfinite(H.sum()):  # of all of H, it would take another m × m
        raise ValueError(
            f"the curvature of {denoiser.name} has NaN or infinity; look for the cause with "
            "denoiser.check(x, t) on its training pairs."
        )
    return H.cpu(), statistics


def _add_gram(H: Tensor, g: Tensor) -> None:
    """Add gᵀg to the lower triangle of H, in strips: half the arithmetic of the whole product."""
    for first in range(0, len(H), STRIP):
        end = min(first + STRIP, len(H))
        H[first:end, :end].addmm_(g[:, first:end].T, g[:, :end])


def _mirror(H: Tensor) -> None:
    """Make the upper triangle of H the mirror image of the lower, in place."""
    for first in range(0, len(H), STRIP):
        end = min(first + STRIP, len(H))
        H[first:end, end:] = H[end:, first:end].T


def residual_statistics(denoiser: Denoiser, pairs: Pairs) -> Statistics:
    """The statistics alone, for what is fitted without `ggn`: one forward pass over the pairs."""
    denoiser = denoiser.wide()
    total, blank = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    sums = {"squared_error": total, "squared_target": blank}
    for _, batch in accumulate(batch_source(denoiser, pairs), len(pairs), sums):
        total += _weighted_square(batch, denoiser(batch.x, batch.t, batch.cond) - batch.target)
        blank += _weighted_square(batch, batch.target)
    return _statistics(denoiser, pairs, float(total), float(blank))


def _weighted_square(batch: Batch, values: Tensor) -> float:
    """Σ_b w_b·‖v_b‖²/d."""
    return float((batch.weight * values.flatten(1).square().mean(1)).sum())


def _statistics(denoiser: Denoiser, pairs: Pairs, squared_error: float, squared_target: float) -> Statistics:
    if squared_error > HOPELESS * squared_target:
        warnings.warn(
            f"{denoiser.name} does not fit these pairs: its error is {squared_error / squared_target:.3g} "
            "times that of answering zero. Are the scale of the data, the schedule and the prediction those "
            "of its training? flare.check_model(denoiser, data, schedule) looks for the cause.",
            RuntimeWarning,
            stacklevel=4,
        )
    return Statistics(pairs.n, len(pairs.data), pairs.data[0].numel(), squared_error / pairs.n)


def probe_count(probes: Probes, n: int, m: int, d: int) -> int | None:
    """How many random probes a pair; None where all d rows are as cheap."""
    if probes == "auto":
        probes = -(-ROWS_PER_PARAMETER * m // n)
    if probes is None:
        return None
    if isinstance(probes, str):
        raise ValueError(f"probes must be a number, 'auto', or None for all rows, got {probes!r}.")
    return k if (k := require_positive_int("probes", probes)) < d else None


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
    for here, some in split_chunks(denoiser, subset, len(batch), u.shape[1]):
        g, _ = pull_rows(
            denoiser, subset, batch.x[here], batch.t[here], u[here, some], take_rows(batch.cond, here)
        )
        yield (g * scale[here, None, None]).flatten(0, 1)


class Products:
    """H as what it does to vectors: H v = (1/n) Σ_i w_i J_iᵀ (J_i v), without any m × m matrix.

    In a process group each process walks its share of the batches, and all must ask for the same products.

    Args:
        denoiser: the network.
        subset: over which parameters.
        pairs: the training pairs; they are kept in memory, since every product walks them.
        resume: where the sums of a product are kept as they grow.
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
        self._resume = resume and resume.of("product", denoiser.fingerprint(), subset, pairs)

    @property
    def fingerprint(self) -> str:
        """A hash of the pairs."""
        digest = hashlib.sha256()
        for batch in batches(self.denoiser, self.pairs):
            for value in (batch.x, batch.t, batch.weight):
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __call__(self, vectors: Tensor) -> Tensor:
        """H v for K vectors at once, (K, m) -> (K, m)."""
        push = Push(self._precise, self.subset, vectors.T)
        dtype = self._precise.dtype
        return self._sum(
            len(vectors),
            lambda index, batch: (
                push(batch.x.to(dtype), None, batch.t, batch.cond)[1] * column(batch.weight, batch.x)
            ),
            self._resume and self._resume.of(vectors),
        ).to(vectors.dtype)

    def noise(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Vectors with covariance H: n^(−1/2) Σ_i √w_i J_iᵀ ε_i, (count, m)."""
        # one stream over all batches: every process draws all of it, and uses what is its own
        shape, dtype = self.pairs.data.shape[1:], self.denoiser.dtype
        noise = (
            (index, torch.randn(count, self.pairs.length(index), *shape, generator=generator, dtype=dtype))
            for index in range(len(self.pairs))
        )

        def draw(index: int, batch: Batch) -> Tensor:
            own = next(drawn for place, drawn in noise if place == index)
            return own.to(batch.x.device) * column(batch.weight.sqrt(), batch.x)

        total = self._sum(count, draw)
        for _ in noise:  # the rest of it
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


def column(weight: Tensor, x: Tensor) -> Tensor:
    """A weight a sample, (B,), as it multiplies x (B, ...)."""
    return weight.view(-1, *[1] * (x.ndim - 1))
