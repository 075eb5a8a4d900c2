"""Layer-wise gradient norms (Dauncey et al.): how hard a sample pulls at each layer, compared with real data.

    φ_l(x) = log ‖∇_{θ_l} L(x)‖²,   L(x) = mean over levels and noises ε of ½‖f(α·x + σ·ε, t) − target‖²

θ_l is one parameter tensor, and gradients are averaged over levels and noises before they are squared. The
score is −Σ_l log N(φ_l; mean_l, variance_l) with the mean and the variance of real data, which takes the
layers as independent. The original differentiates the log-likelihood of the model; here it is the training
loss, with equal weights of all levels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...autodiff.vjp import pull_rows, split_chunks
from ...core.conditions import Cond, take_rows
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.parameterizations import target
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser, times
from ...posteriors.subsets import everything
from .contract import Detector, Levels, Surprise, find_levels, register
from .feature_fits import fit_gaussian

NORM_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)  # as fractions of T


@register
class GradientNorms(Detector):
    """How unlike those of real data the gradient norms of the layers are.

    >>> method = flare.bench.baselines.GradientNorms(denoiser, schedule, levels=0.3)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        repeats: Noise draws per level.
    """

    name = "gradient_norms"
    summary = "gradient norms of the loss per layer, by a Gaussian density of those of real data"
    needed = 2  # for a standard deviation

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, levels: Levels = NORM_LEVELS, repeats: int = 1
    ) -> None:
        self.denoiser = denoiser.wide()  # in half precision, gradients underflow
        self.subset, self.device = everything(self.denoiser), denoiser.device
        require_positive_int("repeats", repeats)
        self.levels = [level for level in find_levels(schedule, levels) for _ in range(repeats)]
        self.draws = len(self.levels)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """log ‖∇L‖² per parameter tensor; one backward pass per level and noise, in chunks that fit."""
        noises = torch.stack([noise.next().to(x) for _ in range(self.draws)])
        parts = [
            self._norms(x[here], take_rows(cond, here), noises[:, here])
            for here, _ in split_chunks(self.denoiser, self.subset, len(x), 1)
        ]
        return torch.cat(parts)

    def _norms(self, x: Tensor, cond: Cond, noises: Tensor) -> Tensor:
        """The features of some samples, from their noises (draws, b, *shape)."""
        total = x.new_zeros(len(x), self.subset.size)
        for level, eps in zip(self.levels, noises, strict=True):
            alpha, sigma = (torch.as_tensor(number).to(x) for number in (level.alpha, level.sigma))
            noised, t = alpha * x + sigma * eps, times(level.time, x)
            wanted = target(self.denoiser.prediction, alpha, sigma, x, eps)
            error = self.denoiser(noised, t, cond) - wanted
            total += pull_rows(self.denoiser, self.subset, noised, t, error[:, None], cond)[:, 0]
        sizes = [len(index) for index in self.subset.indices.values()]
        squares = [part.square().sum(1) for part in (total / self.draws).split(sizes, 1)]
        # a tensor that the network does not use has no gradient
        return torch.stack(squares, 1).clamp(min=torch.finfo(x.dtype).tiny).log()

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit one Gaussian per layer."""
        return fit_gaussian(real)
