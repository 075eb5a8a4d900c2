"""EigenScore: how uncertain the clean sample is, given a noised copy, along its most uncertain directions.

    Cov[x_0 | x_t] = σ²/α²·(I − σ·∂ε̂/∂x_t)          score = Σ over levels of the K largest eigenvalues

The eigenvalues come from subspace iteration with difference quotients: K random vectors are multiplied by
the matrix and made orthonormal a few times, with forward calls only, and the last Rayleigh quotients are
summed. The matrix of a network is not exactly symmetric; its symmetric part counts. Levels, K and the
number of iterations are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core import LEVELS
from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from ...sampling.finished import Levels, find_levels
from .contract import Detector, push_noise, register


@register
class EigenScore(Detector):
    """The sum over levels of the leading eigenvalues of Cov[x_0 | x_t].

    >>> flare.bench.baselines.EigenScore(denoiser, schedule, count=1).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        count: K, the number of eigenvalues; at most one per coordinate.
        iterations: How often the vectors are multiplied by the matrix.
    """

    name = "eigenscore"
    summary = "largest eigenvalues of the covariance of the clean sample, given noised copies"

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = LEVELS,
        count: int = 2,
        iterations: int = 3,
    ) -> None:
        self.denoiser, self.device = denoiser.wide(), denoiser.device
        self.levels, self.count = find_levels(schedule, levels), require_positive_int("count", count)
        self.iterations = require_positive_int("iterations", iterations)
        self.draws = len(self.levels) * (1 + count)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level, iteration and eigenvalue."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            some = [noise.next().to(x).flatten(1) for _ in range(min(self.count, x[0].numel()))]
            products = torch.stack(some, 2)  # (B, d, K)
            for _ in range(self.iterations):
                vectors = torch.linalg.qr(products).Q
                pushed = [
                    push_noise(self.denoiser, level, noised, cond, u.reshape(x.shape)).flatten(1)
                    for u in vectors.unbind(2)
                ]
                products = vectors - torch.stack(pushed, 2)
            total += (level.sigma / level.alpha) ** 2 * (vectors * products).sum((1, 2))
        return total[:, None]
