"""MSMA (Mahmood, Oliva and Styner): norms of the predicted noise at several levels, compared with real data.

    φ_j(x) = ‖ε̂(α_j·x, t_j)‖,  j = 1..L                   score = −log p(φ), or a distance between φ's

The sample is scaled to each level, but no noise is added. p is a Gaussian mixture fitted to φ of real data;
or the score is the distance to the k-th nearest φ of real data. The original takes norms of the score of a
variance-exploding model, which differ from these by a factor per level that standardization removes. It also
fits a normalizing flow, which is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...diffusion.schedules import Level, Schedule
from ...network.denoiser import Denoiser
from ...sampling.options import find_levels
from .catalog import register_comparison
from .clean_estimate import estimate_parts
from .comparison import CompareOptions, Comparison
from .feature_fits import Density, FeatureFit, find_density

LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)  # as fractions of T


@dataclass(frozen=True)
class NoiseNorms:
    """‖ε̂(α·x, t)‖ at each level, (B, L).

    Attributes:
        denoiser: the network.
        levels: where it is called.
    """

    denoiser: Denoiser
    levels: Sequence[Level]
    draws = 0  # nothing is noised

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Call the network once per level."""
        predicted = (estimate_parts(self.denoiser, at, at.alpha * x, cond)[1] for at in self.levels)
        return torch.stack([each.flatten(1).norm(dim=1) for each in predicted], 1)


def msma(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    real: Tensor,
    levels: Sequence[float] = LEVELS,
    density: Density | FeatureFit = "mixture",
    **options: Unpack[CompareOptions],
) -> Tensor:
    """How unlike those of real data the norms of the predicted noise are, (n,).

    >>> flare.bench.baselines.msma(denoiser, schedule, result.samples, data[:50], density="knn").shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples, (n, *shape).
        real: real data, (m, *shape), best held out from training.
        levels: as fractions of T.
        density: "mixture" or "knn", or a fit with settings of its own, such as `feature_fits.Mixture(8)`.
        **options: cond, real_cond, seed, first and batch_size; see `Comparison.score`.
    """
    return make_msma(denoiser, schedule, levels, density).score(x, real, **options)


def make_msma(
    denoiser: Denoiser,
    schedule: Schedule,
    levels: Sequence[float] = LEVELS,
    density: Density | FeatureFit = "mixture",
) -> Comparison:
    """The method, to fit it once and score samples many times; see `msma`.

    >>> method = flare.bench.baselines.make_msma(denoiser, schedule, density="knn")
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    features = NoiseNorms(denoiser, find_levels(schedule, levels))
    return Comparison("msma", features, find_density(density), denoiser.device)


register_comparison(
    "msma",
    "norms of the predicted noise at several levels, by a density of those of real data",
    lambda given: make_msma(given.denoiser, given.steps.schedule, **given.options),
    options=("levels", "density"),
)
