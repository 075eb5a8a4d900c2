"""DiffPath (Heng, Thiery and Soh): how the predicted noise changes on the way from a sample to noise.

DDIM is run backwards, from the sample x_1 = x at the lowest of n levels to noise:

    ε_k = ε̂(x_k, t_k)    x_{k+1} = α_{k+1}·x̂0(x_k) + σ_{k+1}·ε_k    δ_k = (ε_{k+1} − ε_k)·T/(t_{k+1} − t_k)

With one statistic, φ = √(Σ_k ‖δ_k‖²), and the score is −log p(φ) by a kernel density of φ of real data. With
six, φ has the sums of ε, ε², ε³, δ, δ² and δ³ over steps and coordinates, and p is a Gaussian mixture. Here
the bandwidth is Scott's, and the mixture has five components. The released code has a fixed bandwidth of 5
and chooses a mixture of 50 or 100 components by cross-validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...diffusion.samplers import grid
from ...diffusion.schedules import Level, Schedule
from ...network.denoiser import Denoiser
from .catalog import register_comparison
from .clean_estimate import estimate_parts
from .comparison import CompareOptions, Comparison
from .feature_fits import FeatureFit, Kde, Mixture

Dimensions = Literal[1, 6]
DIMENSIONS: tuple[Dimensions, ...] = get_args(Dimensions)
CALLS = 10  # network calls per sample


@dataclass(frozen=True)
class PathStatistics:
    """Statistics of the path to noise, (B, 1) or (B, 6).

    Attributes:
        denoiser: the network.
        levels: from the lowest to the highest.
        fractions: t/T of each level.
        dimensions: how many statistics.
    """

    denoiser: Denoiser
    levels: Sequence[Level]
    fractions: Sequence[float]
    dimensions: Dimensions
    draws = 0  # the path has no noise

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Walk to noise, adding up powers of ε and δ."""
        sums = x.new_zeros(6, len(x))
        last: Tensor | None = None
        gaps = [1.0, *(high - low for low, high in pairwise(self.fractions))]
        for k, (level, gap) in enumerate(zip(self.levels, gaps, strict=True)):
            clean, eps = estimate_parts(self.denoiser, level, x, cond)
            sums[:3] += _powers(eps)
            if last is not None:
                sums[3:] += _powers((eps - last) / gap)
            last = eps
            if k + 1 < len(self.levels):
                x = self.levels[k + 1].alpha * clean + self.levels[k + 1].sigma * eps
        return sums.T if self.dimensions == 6 else sums[4].sqrt()[:, None]


def diffpath(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    real: Tensor,
    dimensions: Dimensions = 6,
    calls: int = CALLS,
    **options: Unpack[CompareOptions],
) -> Tensor:
    """How unlike those of real data the statistics of the path to noise are, (n,).

    >>> flare.bench.baselines.diffpath(denoiser, schedule, result.samples, data[:50], dimensions=1).shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples, (n, *shape).
        real: real data, (m, *shape), best held out from training.
        dimensions: 1 or 6 statistics.
        calls: network calls per sample, at least 2.
        **options: cond, real_cond, seed, first and batch_size; see `Comparison.score`.
    """
    return make_diffpath(denoiser, schedule, dimensions, calls).score(x, real, **options)


def make_diffpath(
    denoiser: Denoiser, schedule: Schedule, dimensions: Dimensions = 6, calls: int = CALLS
) -> Comparison:
    """The method, to fit it once and score samples many times; see `diffpath`.

    >>> method = flare.bench.baselines.make_diffpath(denoiser, schedule, dimensions=1, calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    if dimensions not in DIMENSIONS:
        raise ValueError(f"dimensions must be one of {DIMENSIONS}, got {dimensions!r}.")
    if calls == 1:
        raise ValueError("calls must be at least 2: with 1 level, the noise does not change along the path.")
    ts = grid(schedule, calls, "leading")[::-1]
    features = PathStatistics(
        denoiser, [schedule.at(t) for t in ts], [t / schedule.T for t in ts], dimensions
    )
    how: FeatureFit = Kde() if dimensions == 1 else Mixture()
    return Comparison("diffpath", features, how, denoiser.device)


def _powers(values: Tensor) -> Tensor:
    """Sums of the first three powers over all coordinates, (3, B)."""
    flat = values.flatten(1)
    return torch.stack([flat.pow(power).sum(1) for power in (1, 2, 3)])


register_comparison(
    "diffpath",
    "how the predicted noise changes from the sample to noise, by a density of real data's",
    lambda given: make_diffpath(given.denoiser, given.steps.schedule, **given.options),
    options=("dimensions", "calls"),
)
