"""Instability: how far the denoised sample moves when the sample is moved a little.

    E_u ‖α·(∂x̂0/∂x_t)u‖² = ‖α·∂x̂0/∂x_t‖²_F          at x_t = α·x, averaged over levels, u random signs

Where the denoiser projects onto a manifold of dimension d, this is d: instability and the local intrinsic
dimension are two sides of one matrix, whose trace is FLIPD. Sobieski et al. (arXiv 2605.05026) filter by
instabilities of the manifold that the model induces, and trace them back to this dimension. The norm, the
levels and the step are our reading of their description; the published filter may differ.
"""

from __future__ import annotations

from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from .contract import Probing, register


@register
class Instability(Probing):
    """The mean over levels and probes u of ‖α·(∂x̂0/∂x_t)u‖².

    >>> flare.bench.baselines.Instability(denoiser, schedule, probes=2).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "instability"
    summary = "how far the denoised sample moves when the sample is moved a little"

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level and probe."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            for u, pushed in self.push(level, level.alpha * x, cond, noise):
                total += (u - pushed).square().flatten(1).sum(1)  # x̂0 = (x_t − σ·ε̂)/α
        return (total / (len(self.levels) * self.probes))[:, None]
