"""The endpoint rule: no trajectory. Re-noise a finished sample a little and ask how much x̂0 varies there.

The variance of x̂0 = p·x + q·f at x_t = α·x_0 + σ·ε is q²·diag(J Σ Jᵀ); it is averaged over a few low
levels and noise draws. It scores samples that already exist, real data included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..core import ENDPOINT_LEVELS
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.levels import Level
from ..diffusion.parameterizations import coefficients
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, times
from ..results.result import Spread
from .trajectory import RULES, Ingredients, Plain


@RULES.register
class Endpoint(Plain):
    """Plain sampling, then q²·diag(J Σ Jᵀ) at a few re-noised levels.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        levels: The noise levels.
        repeats: Noise draws per level.
        driver: The network whose f(x, t) moves the samples; by default the denoiser.
    """

    name = "endpoint"
    summary = "no trajectory: re-noise the finished sample"
    drives_itself = True

    def __init__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        directions: Tensor,
        levels: Sequence[Level],
        repeats: int = 1,
        driver: Denoiser | None = None,
    ) -> None:
        super().__init__(driver or denoiser)
        self.prediction, self.push = denoiser.prediction, Push(denoiser, subset, directions)
        self.levels, self.repeats = list(levels), repeats
        self.extra_noise = len(self.levels) * repeats

    @classmethod
    def build(cls, given: Ingredients) -> Endpoint:
        """Make the rule for a posterior, with the default levels."""
        levels = [given.steps.schedule.at_fraction(fraction) for fraction in ENDPOINT_LEVELS]
        return cls(given.denoiser, given.subset, given.directions, levels, driver=given.driver)

    def finish(self, state: Cond, x: Tensor, noise: NoiseSource) -> Spread:
        """Average over levels and noise draws."""
        variance = torch.zeros_like(x)
        for level in self.levels:
            _, q = coefficients(self.prediction, level.alpha, level.sigma)
            t = times(level.time, x)
            for _ in range(self.repeats):
                noised = level.alpha * x + level.sigma * noise.next().to(x)
                _, df = self.push(noised, None, t, state)
                variance += q**2 * df.square().sum(0) / self.extra_noise
        return Spread(x, variance, None, None, state)
