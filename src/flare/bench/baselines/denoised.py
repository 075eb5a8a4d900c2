"""Detectors without real data: how the denoiser changes a finished sample at a few noise levels.

The residual is the distance between a sample and its denoised version, at one level and without noise. The
denoising error is the training loss of a sample: it is noised again, and the error of the recovered noise
is averaged.

FLIPD (Kamkari et al.) is the local intrinsic dimension around a sample, from the denoiser at one level:

    LID(x) = D − σ·tr ∂ε̂/∂x_t + ‖ε̂‖² = α·tr ∂x̂0/∂x_t + ‖ε̂‖²          at x_t = α·x

For data on a manifold of dimension d, x̂0 projects onto it, and the trace counts d directions. The trace is
estimated by Hutchinson's method, the mean of uᵀ(∂f/∂x)u over random signs u, or taken exactly if there are at
least as many probes as coordinates. The original offers the estimate as a measure of complexity; as a score,
larger is more doubtful, because a sample between modes or off the manifold has directions that data does not
have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...autodiff.jvp import Push
from ...core import LEVELS
from ...core.conditions import Cond
from ...core.noise_streams import ERRORS_STREAM, NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.parameterizations import coefficients
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser, times
from ...sampling.finished import Levels, find_levels
from .contract import Detector, estimate_parts, register


@register
class Residual(Detector):
    """‖x − x̂0(α·x, t)‖² at one level.

    >>> flare.bench.baselines.Residual(denoiser, schedule).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        level: The noise level, as a fraction of T.
    """

    name = "residual"
    summary = "distance between a sample and its denoised version"

    def __init__(self, denoiser: Denoiser, schedule: Schedule, *, level: float = 0.1) -> None:
        self.denoiser, self.level, self.device = denoiser, schedule.at_fraction(level), denoiser.device

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call."""
        clean, _ = estimate_parts(self.denoiser, self.level, self.level.alpha * x, cond)
        return (x - clean).square().flatten(1).sum(1)[:, None]


@register
class DenoisingError(Detector):
    """The mean over levels and noises ε of the squared error in ε, ‖x − x̂0(α·x + σ·ε, t)‖²·α²/σ².

    For a network that predicts ε this is ‖ε − f‖², its training loss.

    >>> flare.bench.baselines.DenoisingError(denoiser, schedule).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        repeats: Noise draws per level.
    """

    name = "denoising_error"
    summary = "squared error of the denoiser on noised copies of a sample"
    stream = ERRORS_STREAM

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, levels: Levels = LEVELS, repeats: int = 4
    ) -> None:
        self.denoiser, self.levels = denoiser, find_levels(schedule, levels)
        self.repeats, self.device = require_positive_int("repeats", repeats), denoiser.device
        self.draws = len(self.levels) * repeats

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call per level and noise."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            for _ in range(self.repeats):
                noised = level.alpha * x + level.sigma * noise.next().to(x)
                clean, _ = estimate_parts(self.denoiser, level, noised, cond)
                total += (x - clean).square().flatten(1).sum(1) * (level.alpha / level.sigma) ** 2
        return (total / self.draws)[:, None]


@register
class FLIPD(Detector):
    """The local intrinsic dimension around each sample.

    >>> flare.bench.baselines.FLIPD(denoiser, schedule, probes=4).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network; `denoiser.by("secant")` if it has no forward-mode derivative.
        schedule: The noise levels that the network was trained on.
        level: The noise level, as a fraction of T.
        probes: Derivatives per sample; with as many as coordinates, the trace is exact.
    """

    name = "flipd"
    summary = "local intrinsic dimension of the data around a sample, by the denoiser"

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, level: float = 0.05, probes: int = 16
    ) -> None:
        self.denoiser, self.device = denoiser.wide(), denoiser.device
        self.level, self.draws = schedule.at_fraction(level), require_positive_int("probes", probes)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call with its derivatives along the probes."""
        at, d = self.level, x[0].numel()
        p, q = coefficients(self.denoiser.prediction, at.alpha, at.sigma)
        if d <= self.draws:  # exact: the trace over the axes
            axes = torch.eye(d, dtype=x.dtype, device=x.device).view(d, 1, *x.shape[1:])
            u, weight = axes.expand(d, *x.shape).contiguous(), 1.0
        else:
            signs = [torch.where(noise.next() < 0, -1.0, 1.0) for _ in range(self.draws)]
            u, weight = torch.stack(signs).to(x), 1 / self.draws
        noised = at.alpha * x
        f, df = Push(self.denoiser)(noised, u, times(at.time, x), cond)
        trace = p * d + q * weight * (u * df).flatten(2).sum(2).sum(0)
        # ε̂ = (x_t − α·x̂0)/σ, written so that x_t cancels where the network predicts ε
        eps = ((1 - at.alpha * p) * noised - at.alpha * q * f) / at.sigma
        return (at.alpha * trace + eps.square().flatten(1).sum(1))[:, None]
