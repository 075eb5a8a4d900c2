"""The curvature over a subset, the generalized Gauss-Newton matrix H = (1/n) Σ_i w_i J_iᵀ J_i: always a mean.

Instead of all d rows of each J_i, k random sign vectors u per pair give (1/k) Σ_u (J_iᵀu)(J_iᵀu)ᵀ, whose mean
is J_iᵀ J_i. The accuracy of H depends on the total number of rows. Scores and their ranking gain more from
more pairs than from more rows per pair (`benchmarks/knee.py`). The empirical Fisher is the same sum with the
residual of the pair as its only probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..autodiff.vjp import iterate_rows
from ..core import distributed
from ..core.noise_streams import mix_seed
from ..core.progress import Progress, warn, watch
from ..core.validation import one_of, require_positive_int
from ..diffusion.noising import Batch, Pairs
from ..diffusion.schedules import Schedule, Summary
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..network.probing import call
from ..storage import checkpoint
from ..storage.resume import Resume

Kind = Literal["ggn", "fisher"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Probes = int | Literal["auto"] | None
Draw = Callable[[int], Batch]
STRIP = 512  # rows of H per update
HOPELESS = 2.0  # a fit warns if the error is this many times that of predicting zero
ROWS_PER_PARAMETER = 8  # the target of probes="auto"


@dataclass(frozen=True)
class Statistics:
    """Statistics of a pass over the training pairs.

    Attributes:
        pairs: n, the number of pairs.
        data_size: N, the size of the training set.
        dimension: d, the number of coordinates per sample.
        residual_variance: σ², the weighted mean squared error of the network per coordinate.
    """

    pairs: int
    data_size: int
    dimension: int
    residual_variance: float

    @property
    def calibrated_scale(self) -> float:
        """N/σ², the scale at which s·H is the curvature of the log-likelihood of the full training set."""
        if self.residual_variance <= 0:
            raise ValueError(
                "scale='calibrated' needs residuals above 0, but all are 0; give scale as a number."
            )
        return self.data_size / self.residual_variance


@dataclass(frozen=True)
class Origin:
    """The source of a curvature.

    Attributes:
        subset: The uncertain parameters.
        fingerprint: The hashes of the network.
        statistics: The statistics of the pass over the training pairs.
        squared_norm: ‖ẑ‖² of the coordinates ẑ of θ̂, for the prior N(0, I/δ) in the marginal likelihood. The
            coordinates of a subset are θ̂_I. For a sketch S, the values are (SᵀS)⁻¹Sᵀθ̂: the prior is one of
            S z, and the part of θ̂ that no S z reaches is fixed, as the parameters outside a subset are.
        schedule: A summary of the noise levels of the training pairs; None if unknown.
    """

    subset: Subset
    fingerprint: dict[str, str]
    statistics: Statistics
    squared_norm: float
    schedule: Summary | None = None

    @classmethod
    def of(
        cls, denoiser: Denoiser, subset: Subset, statistics: Statistics, schedule: Schedule | None = None
    ) -> Origin:
        """The origin of a curvature over `subset` of `denoiser`, from pairs of `schedule`."""
        z = subset.locate(denoiser)
        fingerprint = denoiser.fingerprint()
        distributed.require_agreement("the weights, or the subset,", checkpoint.digest(fingerprint, subset))
        levels = None if schedule is None else Summary.of(schedule)
        return cls(subset, fingerprint, statistics, float(z.square().sum()), levels)


def ggn(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    *,
    probes: Probes = "auto",
    kind: Kind = "ggn",
    diagonal: bool = False,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Tensor, Statistics]:
    """Compute H over the subset in one pass, in float64: (m, m), or only its diagonal, (m,).

    In a process group the batches are divided among the processes, and all processes get the same H.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        probes: k, the number of random probes per pair; None for all d rows (exact); "auto" for
            `ROWS_PER_PARAMETER` rows per parameter, and at least one probe per pair.
        kind: `ggn`, or `fisher` for the empirical Fisher: (1/n) Σ w_i² J_iᵀ r_i r_iᵀ J_i / σ², which
            is H on average if the residuals r are N(0, σ²/w).
        diagonal: Whether to compute only the diagonal.
        resume: Where to keep checkpoints of the sum; an identical call resumes from them.
        progress: Wraps the batches of pairs.
    """
    one_of("curvature", kind, KINDS)
    denoiser = denoiser.wide()
    m = subset.size
    H = torch.zeros(m if diagonal else (m, m), dtype=torch.float64, device=denoiser.device)
    total, blank = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    if resume is not None:
        resume = resume.for_job("ggn", denoiser.fingerprint(), subset, pairs, probes, kind, diagonal)
    sums = {"H": H, "squared_error": total, "squared_target": blank}
    for index, batch in accumulate(batch_source(denoiser, pairs), len(pairs), sums, resume, progress):
        if kind == "fisher":
            u, scale = (denoiser(batch.x, batch.t, batch.cond) - batch.target).unsqueeze(1), batch.weight
        else:
            u, scale = draw_probes(probes, pairs, m, batch.x, index), batch.weight.sqrt()
        outputs = torch.empty_like(batch.target)
        for here, f, rows in iterate_rows(denoiser, subset, batch.x, batch.t, u, batch.cond):
            outputs[here] = f
            # to float64 before the product: in float32 rounding makes H indefinite at the level of 1e-7
            g = (rows * scale[here, None, None]).flatten(0, 1).double()
            if diagonal:
                H += g.square().sum(0)
                continue
            for first in range(0, m, STRIP):  # only the lower triangle: half the arithmetic
                end = min(first + STRIP, m)
                H[first:end, :end].addmm_(g[:, first:end].T, g[:, :end])
        total += _weighted_square(batch, outputs - batch.target)
        blank += _weighted_square(batch, batch.target)
    statistics = _statistics(denoiser, pairs, float(total), float(blank))
    for end in () if diagonal else range(STRIP, m, STRIP):
        H[end - STRIP : end, end:] = H[end:, end - STRIP : end].T
    H /= pairs.n * (statistics.residual_variance if kind == "fisher" else 1.0)
    if not torch.isfinite(H.sum()):  # isfinite(H) would need another m × m matrix
        raise ValueError(
            f"the gradients of {denoiser.name} have NaN or infinity on its training pairs. Look for unscaled "
            "data, a layer that divides by zero, or diverged training."
        )
    return H.cpu(), statistics


def residual_statistics(denoiser: Denoiser, pairs: Pairs) -> Statistics:
    """Compute only the statistics, for structures that do not use `ggn`: one forward pass over the pairs."""
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
    if not math.isfinite(squared_error):
        raise ValueError(
            f"{denoiser.name} returns NaN or infinity on its training pairs. Look for unscaled data, a layer "
            "that divides by zero, or diverged training."
        )
    if squared_error > HOPELESS * squared_target:
        warn(
            f"{denoiser.name} does not fit these pairs: its error is {squared_error / squared_target:.3g} "
            "times that of predicting zero. Check that the scale of the data, the schedule and the "
            "prediction match its training; flare.check_model(denoiser, data, schedule) looks for the "
            "cause."
        )
    return Statistics(pairs.n, pairs.samples, pairs.data[0].numel(), squared_error / pairs.n)


def probe_count(probes: Probes, n: int, m: int, d: int) -> int | None:
    """Return the number of random probes per pair; None if all d rows cost no more."""
    if probes == "auto":
        probes = -(-ROWS_PER_PARAMETER * m // n)
    if probes is None:
        return None
    if isinstance(probes, str):
        raise ValueError(f"probes must be an integer, 'auto', or None for all rows, got {probes!r}.")
    return k if (k := require_positive_int("probes", probes)) < d else None


def draw_probes(probes: Probes, pairs: Pairs, m: int, x: Tensor, index: int) -> Tensor:
    """Probes u (B, k, *shape) of the batch x with this index; E[Σ_k u uᵀ] = I.

    They are all d unit vectors, or k random sign vectors divided by √k.
    """
    d = x[0].numel()
    k = probe_count(probes, pairs.n, m, d)
    if k is None:
        unit = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
        return unit.expand(len(x), *unit.shape)
    generator = torch.Generator().manual_seed(mix_seed(mix_seed(pairs.seed, 1), index))
    coins = torch.randint(0, 2, (len(x), k, *x.shape[1:]), generator=generator, dtype=torch.int8)
    return coins.to(x).mul_(2).sub_(1).div_(k**0.5)


def spectrum(H: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues of a curvature (ascending, rounding below 0 set to 0) and its eigenvectors."""
    if not torch.isfinite(H).all():
        raise ValueError("H has NaN or infinity: the curvature is not usable.")
    values, vectors = torch.linalg.eigh(H)
    if values[0] < -1e-4 * values[-1].abs():
        raise ValueError(
            f"H is indefinite: its eigenvalues go from {values[0]:.3g} to {values[-1]:.3g}, but a GGN has "
            "none below 0. Check how it was computed."
        )
    # contiguous, like tensors read from a file: products are then equal to the last bit
    return values.clamp(min=0), vectors.contiguous()


def batch_source(denoiser: Denoiser, pairs: Pairs) -> Draw:
    """Return a function from an index to its batch, in the network's dtype and on its device."""
    draw = pairs.batch_source(denoiser.prediction, denoiser.dtype)
    first = draw(0).to(denoiser.device)
    call(denoiser, first.x, first.t, first.cond)  # fail early
    return lambda index: draw(index).to(denoiser.device)


def accumulate(
    draw: Draw,
    count: int,
    sums: Mapping[str, Tensor],
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield this process's batches as (index, batch), then add the sums of all processes.

    The caller adds the term of each batch to `sums` in place. When the iterator is exhausted, `sums` hold the
    totals over all processes.

    Args:
        draw: Returns the batch of an index.
        count: The number of batches.
        sums: The running sums, initially zero.
        resume: Where to keep checkpoints of the sums; an identical call resumes from them.
        progress: Wraps the batches.
    """
    mine, start = distributed.own_items(range(count)), 0
    if resume is not None:
        resume = resume.for_job(distributed.rank(), distributed.size())
        start = resume.restore("sums", sums)
    left = ((index, draw(index)) for index in mine[start:])
    for done, item in enumerate(watch(left, len(mine) - start, progress), start + 1):
        yield item
        if resume is not None:
            resume.save_if_due("sums", sums, done)
    distributed.sum_over_processes(*sums.values())


def column(weight: Tensor, x: Tensor) -> Tensor:
    """One weight per sample, (B,), reshaped to multiply x (B, ...)."""
    return weight.view(-1, *[1] * (x.ndim - 1))
