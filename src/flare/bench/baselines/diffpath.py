"""DiffPath (Heng, Thiery and Soh): how the predicted noise changes on the way from a sample to noise.

DDIM is run backwards, from the sample x_1 = x at the lowest of n levels to noise:

    ε_k = ε̂(x_k, t_k)    x_{k+1} = α_{k+1}·x̂0(x_k) + σ_{k+1}·ε_k    δ_k = (ε_{k+1} − ε_k)·T/(t_{k+1} − t_k)

With one statistic, φ = √(Σ_k ‖δ_k‖²), and the score is −log p(φ) by a kernel density of φ of real data. With
six, φ has the sums of ε, ε², ε³, δ, δ² and δ³ over steps and coordinates, and p is a Gaussian mixture. Here
the bandwidth is Scott's, and the mixture has five components. The released code has a fixed bandwidth of 5
and chooses a mixture of 50 or 100 components by cross-validation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import DIRECTIONS_STREAM, NoiseSource, mix_seed
from ...diffusion.samplers import grid
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from .contract import Detector, Surprise, estimate_parts, register
from .feature_fits import fit_kde, fit_mixture

Dimensions = Literal[1, 6]
DIMENSIONS: tuple[Dimensions, ...] = get_args(Dimensions)
COMPONENTS = 5  # of the mixture


@register
class DiffPath(Detector):
    """How unlike those of real data the statistics of the path to noise are.

    >>> method = flare.bench.baselines.DiffPath(denoiser, schedule, dimensions=1, calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        dimensions: 1 or 6 statistics.
        calls: Network calls per sample, at least 2.
    """

    name = "diffpath"
    summary = "how the predicted noise changes from the sample to noise, by a density of real data's"

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, dimensions: Dimensions = 6, calls: int = 10
    ) -> None:
        if dimensions not in DIMENSIONS:
            raise ValueError(f"dimensions must be one of {DIMENSIONS}, got {dimensions!r}.")
        if calls == 1:
            raise ValueError(
                "calls must be at least 2: with 1 level, the noise does not change along the path."
            )
        self.denoiser, self.dimensions, self.device = denoiser, dimensions, denoiser.device
        ts = grid(schedule, calls, "leading")[::-1]  # from the lowest level to the highest
        self.levels, self.fractions = [schedule.at(t) for t in ts], [t / schedule.T for t in ts]
        self.needed = 2 if dimensions == 1 else COMPONENTS

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
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

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        if self.dimensions == 1:
            return fit_kde(real)
        return fit_mixture(real, COMPONENTS, mix_seed(seed, DIRECTIONS_STREAM))


def _powers(values: Tensor) -> Tensor:
    """Sums of the first three powers over all coordinates, (3, B)."""
    flat = values.flatten(1)
    return torch.stack([flat.pow(power).sum(1) for power in (1, 2, 3)])
