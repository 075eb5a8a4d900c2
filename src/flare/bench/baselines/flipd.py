"""FLIPD (Kamkari et al.): the local intrinsic dimension around a sample, from the denoiser at one level.

    LID(x) = D − σ·tr ∂ε̂/∂x_t + ‖ε̂‖² = α·tr ∂x̂0/∂x_t + ‖ε̂‖²          at x_t = α·x

For data on a manifold of dimension d, x̂0 projects onto it, and the trace counts d directions. The trace is
estimated by Hutchinson's method, the mean of uᵀ(∂f/∂x)u over random signs u, or taken exactly if there are at
least as many probes as coordinates. The original offers the estimate as a measure of complexity; as a score,
larger is more doubtful, since a sample between modes or off the manifold has directions that data has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...autodiff.jvp import Push
from ...core.conditions import Cond, check_conditions, take_rows, to_device
from ...core.memory import BatchSize, check_batch_size, choose_batch_size, memory_budget, run_batches
from ...core.noise_streams import COMPARED_STREAM, NoiseStreams, mix_seed
from ...core.validation import require_positive_int, require_samples
from ...diffusion.parameterizations import coefficients
from ...diffusion.schedules import Level, Schedule
from ...network.denoiser import Denoiser, times
from ...results.result import Result
from .catalog import BASELINES, Baseline, Inputs

LEVEL = 0.05  # as a fraction of T
PROBES = 16


@torch.no_grad()
def flipd(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    level: float = LEVEL,
    probes: int = PROBES,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: BatchSize = "auto",
) -> Tensor:
    """The local intrinsic dimension around each sample, (n,).

    >>> flare.bench.baselines.flipd(denoiser, schedule, result.samples, probes=4).shape
    torch.Size([20])

    Args:
        denoiser: the network; `denoiser.by("secant")` if it has no forward-mode derivative.
        schedule: the noise levels the network was trained on.
        x: finished samples or real data, (n, *shape).
        level: the noise level, as a fraction of T.
        probes: derivatives per sample; with as many as coordinates, the trace is exact.
        cond: keyword arguments of the network; tensors have one row per sample.
        seed: of the probes.
        first: the index of the first sample, to score samples first..first+n−1 by themselves.
        batch_size: samples per network call, or "auto".
    """
    cond = check_conditions(cond, len(require_samples("x", x)))
    require_positive_int("probes", probes)
    scoring = _Scoring(
        denoiser.wide(), schedule.at_fraction(level), x, cond, probes, mix_seed(seed, COMPARED_STREAM), first
    )
    size, device = check_batch_size(batch_size), denoiser.device
    if size is None:
        size = choose_batch_size(len(x), memory_budget(None, device), scoring.try_batch, device)
    return torch.cat(list(run_batches(len(x), size, scoring.run)))


@dataclass(frozen=True)
class _Scoring:
    """How samples are scored, batch by batch; see `flipd`."""

    denoiser: Denoiser
    level: Level
    x: Tensor
    cond: Cond
    probes: int
    seed: int
    first: int

    def run(self, here: slice) -> Iterator[Tensor]:
        """Score the samples of a slice, (B,)."""
        x = self.x[here]
        x = x.to(self.denoiser.device, torch.promote_types(x.dtype, torch.float32))
        at, cond = self.level, to_device(take_rows(self.cond, here), x.device)
        p, q = coefficients(self.denoiser.prediction, at.alpha, at.sigma)
        u, weight = self._draw(x, self.first + here.start)
        noised = at.alpha * x
        f, df = Push(self.denoiser)(noised, u, times(at.time, x), cond)
        trace_f = weight * (u * df).flatten(2).sum(2).sum(0)
        # ε̂ = (x_t − α·x̂0)/σ, written so that x_t cancels where the network predicts ε
        eps = ((1 - at.alpha * p) * noised - at.alpha * q * f) / at.sigma
        trace = p * x[0].numel() + q * trace_f
        yield (at.alpha * trace + eps.square().flatten(1).sum(1)).to(self.x.device)

    def try_batch(self, count: int) -> None:
        """Memory probe: score a few samples."""
        list(self.run(slice(0, count)))

    def _draw(self, x: Tensor, first: int) -> tuple[Tensor, float]:
        """Directions u (K, B, *shape) and the weight of each uᵀ(∂f/∂x)u in the trace."""
        d = x[0].numel()
        if d <= self.probes:
            basis = torch.eye(d, dtype=x.dtype, device=x.device).view(d, 1, *x.shape[1:])
            return basis.expand(d, *x.shape).contiguous(), 1.0
        noise = NoiseStreams(self.seed, first, len(x), x.shape[1:], self.probes)
        signs = [torch.where(noise.next() < 0, -1.0, 1.0) for _ in range(self.probes)]
        return torch.stack(signs).to(x), 1 / self.probes


def _run(given: Inputs) -> Result:
    sampling = {key: value for key, value in given.sampling.items() if key in ("seed", "first", "batch_size")}
    values = flipd(given.denoiser, given.steps.schedule, given.existing, **sampling, **given.options)
    return Result(given.existing, scores={"flipd": values})


BASELINES.register(
    Baseline(
        "flipd",
        "local intrinsic dimension of the data around a sample, by the denoiser",
        run=_run,
        needs="samples",
        options=("level", "probes"),
        count_trajectories=lambda given: 0,
    )
)
