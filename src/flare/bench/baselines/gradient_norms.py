"""Layer-wise gradient norms (Dauncey et al.): how hard a sample pulls at each layer, compared with real data.

    φ_l(x) = log ‖∇_{θ_l} L(x)‖²,   L(x) = mean over levels and noises ε of ½‖f(α·x + σ·ε, t) − target‖²

θ_l is one parameter tensor, and gradients are averaged over levels and noises before they are squared. The
score is −Σ_l log N(φ_l; mean_l, variance_l) with the mean and the variance of real data, which takes the
layers as independent. The original differentiates the log-likelihood of the model; here it is the training
loss, with equal weights of all levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...autodiff.vjp import pull_rows, split_chunks
from ...core.conditions import Cond, take_rows
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.parameterizations import target
from ...diffusion.schedules import Level, Schedule
from ...network.denoiser import Denoiser, times
from ...posteriors.subsets import Subset, everything
from ...sampling.options import find_levels
from .catalog import register_comparison
from .comparison import CompareOptions, Comparison
from .feature_fits import Gaussian

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)  # as fractions of T
REPEATS = 1  # noises per level


@dataclass(frozen=True)
class GradientNorms:
    """log ‖∇L‖² per parameter tensor, (B, layers).

    Attributes:
        denoiser: the network, in single precision at least.
        subset: all of its parameters.
        levels: where the loss is taken.
        repeats: noises per level.
    """

    denoiser: Denoiser
    subset: Subset
    levels: Sequence[Level]
    repeats: int

    @property
    def draws(self) -> int:
        """Noises per sample."""
        return len(self.levels) * self.repeats

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One backward pass per level and noise, for as many samples as fit into memory."""
        noises = torch.stack([noise.next().to(x) for _ in range(self.draws)])
        parts = [
            self._norms(x[here], take_rows(cond, here), noises[:, here])
            for here, _ in split_chunks(self.denoiser, self.subset, len(x), 1)
        ]
        return torch.cat(parts)

    def _norms(self, x: Tensor, cond: Cond, noises: Tensor) -> Tensor:
        """The features of some samples, from their noises (draws, b, *shape)."""
        total = x.new_zeros(len(x), self.subset.size)
        levels = [level for level in self.levels for _ in range(self.repeats)]
        for level, eps in zip(levels, noises, strict=True):
            alpha, sigma = (torch.as_tensor(number).to(x) for number in (level.alpha, level.sigma))
            noised, t = alpha * x + sigma * eps, times(level.time, x)
            wanted = target(self.denoiser.prediction, alpha, sigma, x, eps)
            error = self.denoiser(noised, t, cond) - wanted
            total += pull_rows(self.denoiser, self.subset, noised, t, error[:, None], cond)[:, 0]
        sizes = [len(index) for index in self.subset.indices.values()]
        squares = [part.square().sum(1) for part in (total / len(levels)).split(sizes, 1)]
        # a tensor that the network does not use has no gradient
        return torch.stack(squares, 1).clamp(min=torch.finfo(x.dtype).tiny).log()


def gradient_norms(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    real: Tensor,
    levels: Sequence[float] = LEVELS,
    repeats: int = REPEATS,
    **options: Unpack[CompareOptions],
) -> Tensor:
    """How unlike those of real data the gradient norms of the layers are, (n,).

    >>> flare.bench.baselines.gradient_norms(denoiser, schedule, result.samples, data[:50]).shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples, (n, *shape).
        real: real data, (m, *shape), best held out from training.
        levels: as fractions of T.
        repeats: noise draws per level.
        **options: cond, real_cond, seed, first and batch_size; see `Comparison.score`.
    """
    return make_gradient_norms(denoiser, schedule, levels, repeats).score(x, real, **options)


def make_gradient_norms(
    denoiser: Denoiser, schedule: Schedule, levels: Sequence[float] = LEVELS, repeats: int = REPEATS
) -> Comparison:
    """The method, to fit it once and score samples many times; see `gradient_norms`.

    >>> method = flare.bench.baselines.make_gradient_norms(denoiser, schedule, levels=(0.3,))
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    wide = denoiser.wide()  # in half precision, gradients underflow
    features = GradientNorms(
        wide, everything(wide), find_levels(schedule, levels), require_positive_int("repeats", repeats)
    )
    return Comparison("gradient_norms", features, Gaussian(), denoiser.device)


register_comparison(
    "gradient_norms",
    "gradient norms of the loss per layer, by a Gaussian density of those of real data",
    lambda given: make_gradient_norms(given.denoiser, given.steps.schedule, **given.options),
    options=("levels", "repeats"),
)
