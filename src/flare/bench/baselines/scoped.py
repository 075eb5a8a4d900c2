"""SCOPED: the curvature of the log-density relative to its slope, compared with real data.

    φ_j(x) = tr ∂s/∂x_t / ‖s‖² = −σ·tr ∂ε̂/∂x_t / ‖ε̂‖²    at x_t = α_j·x + σ_j·ε        score = −log p(φ)

p is a kernel density of φ of real data. For the data that a model was trained on, E[tr ∂s/∂x + ‖s‖²] = 0,
so φ is about −1. The trace is Hutchinson's, with difference quotients. Levels, noise and bandwidth
(Scott's) are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from .contract import Probing, Surprise, estimate_parts, register
from .feature_fits import fit_kde


@register
class Scoped(Probing):
    """How unlike that of real data the ratio of curvature and squared slope is.

    >>> method = flare.bench.baselines.Scoped(denoiser, schedule, probes=2)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "scoped"
    summary = "curvature of the log-density relative to its slope, by a density fitted to real data"
    needed = 2  # for a standard deviation

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call per level, and two per level and probe."""
        ratios = []
        for level in self.levels:
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            slope = estimate_parts(self.denoiser, level, noised, cond)[1].square().flatten(1).sum(1)
            trace = x.new_zeros(len(x))
            for u, pushed in self.push(level, noised, cond, noise):
                trace -= (u * pushed).flatten(1).sum(1)
            ratios.append(trace / self.probes / slope.clamp(min=torch.finfo(x.dtype).tiny))
        return torch.stack(ratios, 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        return fit_kde(real)
