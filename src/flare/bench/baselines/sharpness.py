"""Sharpness: the Laplacian of the log-density around a sample, which is large between modes.

    σ²·Δ log p_t(x_t) = σ²·tr ∂s/∂x_t = −σ·tr ∂ε̂/∂x_t          at x_t = α·x, averaged over levels

On a mode the log-density is concave in every direction that data does not have, and the Laplacian is about
−D. Between modes it is convex along the line that joins them. The trace is Hutchinson's, with difference
quotients, as in arXiv 2606.00377; the sign, the levels and the step are ours.
"""

from __future__ import annotations

from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from .contract import Probing, register


@register
class Sharpness(Probing):
    """The mean over levels of σ²·Δ log p.

    >>> flare.bench.baselines.Sharpness(denoiser, schedule, probes=2).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "sharpness"
    summary = "Laplacian of the log-density at a sample, by difference quotients"

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level and probe."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            for u, pushed in self.push(level, level.alpha * x, cond, noise):
                total -= (u * pushed).flatten(1).sum(1)
        return (total / (len(self.levels) * self.probes))[:, None]
