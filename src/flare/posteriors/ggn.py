"""The generalized Gauss-Newton matrix over a subset: H = (1/n) Σ_i w_i J_iᵀ J_i, always a mean.

Instead of all d rows of each J_i, k random sign vectors u per pair give (1/k) Σ_u (J_iᵀu)(J_iᵀu)ᵀ, whose mean
is J_iᵀ J_i. The accuracy of H depends on the total number of rows; scores and their ranking gain more from
more pairs than from more rows per pair (docs/performance.md). The empirical Fisher is the same sum with the
residual of the pair as its only probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..autodiff.vjp import iterate_rows
from ..core.noise_streams import mix_seed
from ..core.progress import Progress, warn
from ..core.validation import one_of, require_positive_int
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .accumulate import accumulate, batch_source

Kind = Literal["ggn", "fisher"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Probes = int | Literal["auto"] | None
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
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs.
        probes: k, the number of random probes per pair; None for all d rows (exact); "auto" for
            `ROWS_PER_PARAMETER` rows per parameter, and at least one probe per pair.
        kind: `ggn`, or `fisher` for the empirical Fisher: (1/n) Σ w_i² J_iᵀ r_i r_iᵀ J_i / σ², which
            is H on average if the residuals r are N(0, σ²/w).
        diagonal: whether to compute only the diagonal.
        resume: where to keep checkpoints of the sum; an identical call resumes from them.
        progress: wraps the batches of pairs.
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
    if not torch.isfinite(H.sum()):  # isfinite(H) would need another m × m matrix
        raise ValueError(
            f"the curvature of {denoiser.name} has NaN or infinity; call denoiser.check(x, t) on its "
            "training pairs to find the cause."
        )
    return H.cpu(), statistics


def _add_gram(H: Tensor, g: Tensor) -> None:
    """Add gᵀg to the lower triangle of H in strips, which halves the arithmetic."""
    for first in range(0, len(H), STRIP):
        end = min(first + STRIP, len(H))
        H[first:end, :end].addmm_(g[:, first:end].T, g[:, :end])


def _mirror(H: Tensor) -> None:
    """Copy the lower triangle of H to the upper one, in place."""
    for first in range(0, len(H), STRIP):
        end = min(first + STRIP, len(H))
        H[first:end, end:] = H[end:, first:end].T


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
    if squared_error > HOPELESS * squared_target:
        warn(
            f"{denoiser.name} does not fit these pairs: its error is {squared_error / squared_target:.3g} "
            "times that of predicting zero. Check that the scale of the data, the schedule and the "
            "prediction are those of its training; flare.check_model(denoiser, data, schedule) looks for the "
            "cause."
        )
    return Statistics(pairs.n, len(pairs.data), pairs.data[0].numel(), squared_error / pairs.n)


def probe_count(probes: Probes, n: int, m: int, d: int) -> int | None:
    """Return the number of random probes per pair; None if all d rows cost no more."""
    if probes == "auto":
        probes = -(-ROWS_PER_PARAMETER * m // n)
    if probes is None:
        return None
    if isinstance(probes, str):
        raise ValueError(f"probes must be an integer, 'auto', or None for all rows, got {probes!r}.")
    return k if (k := require_positive_int("probes", probes)) < d else None


def probe(x: Tensor, k: int | None, seed: int) -> Tensor:
    """Draw probes u (B, k, *shape) with E[Σ_k u uᵀ] = I: all d unit vectors, or k random sign vectors /√k."""
    if k is None:
        d = x[0].numel()
        unit = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
        return unit.expand(len(x), *unit.shape)
    generator = torch.Generator().manual_seed(seed)
    coins = torch.randint(0, 2, (len(x), k, *x.shape[1:]), generator=generator)
    return (2 * coins - 1).to(x) / k**0.5


def gradients(denoiser: Denoiser, subset: Subset, batch: Batch, u: Tensor, scale: Tensor) -> Iterator[Tensor]:
    """Yield scale_b·J_bᵀ u_{b,k} as rows (·, m), in chunks that fit in memory."""
    for here, g in iterate_rows(denoiser, subset, batch.x, batch.t, u, batch.cond):
        yield (g * scale[here, None, None]).flatten(0, 1)
