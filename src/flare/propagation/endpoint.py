"""The endpoint rule: no trajectory. Re-noise a finished sample a little and ask how certain x̂0 is there.

The variance of x̂0 = p·x + q·f at x_t = α·x_0 + σ·ε is q²·diag(J Σ Jᵀ); it is averaged over a few low
levels and noise draws. It scores samples that already exist, real data included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.defaults import ENDPOINT_LEVELS
from ..core.noise_streams import NoiseSource
from ..diffusion.parameterizations import coefficients
from ..diffusion.samplers import Step
from ..diffusion.schedules import Level
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, times
from ..results.spread import Spread
from .rules import RULES, Ingredients, RuleSpec
from .trajectory import Rule


class Endpoint(Rule):
    """Plain sampling, then q²·diag(J Σ Jᵀ) at a few re-noised levels.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        levels: the noise levels.
        repeats: noise draws per level.
        driver: whose f(x, t) moves the samples; by default the denoiser.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        directions: Tensor,
        levels: Sequence[Level],
        repeats: int = 1,
        driver: Denoiser | None = None,
    ) -> None:
        self.denoiser, self.driver = denoiser, driver or denoiser
        self.push = Push(denoiser, subset, directions)
        self.levels, self.repeats = list(levels), repeats
        self.extra_noise = len(self.levels) * repeats

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Cond:
        """Keep the conditions."""
        return cond

    def step(self, state: Cond, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Cond]:
        """f(x, t)."""
        return self.driver(x, t, state), state

    def finish(self, state: Cond, x: Tensor, noise: NoiseSource) -> Spread:
        """Average over levels and noise draws."""
        variance = torch.zeros_like(x)
        for level in self.levels:
            _, q = coefficients(self.denoiser.prediction, level.alpha, level.sigma)
            t = times(level.time, x)
            for _ in range(self.repeats):
                noised = level.alpha * x + level.sigma * noise.next().to(x)
                _, df = self.push(noised, None, t, state)
                variance += q**2 * df.square().sum(0) / self.extra_noise
        return Spread(x, variance, None, None, state)


def _build(given: Ingredients) -> Endpoint:
    levels = [given.steps.schedule.at_fraction(fraction) for fraction in ENDPOINT_LEVELS]
    return Endpoint(given.denoiser, given.subset, given.directions, levels, driver=given.driver)


RULES.register(
    RuleSpec("endpoint", "no trajectory: re-noise the finished sample", build=_build, drives_itself=True)
)
