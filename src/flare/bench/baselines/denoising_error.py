"""Residual, denoising error and MSMA: what the denoiser makes of a finished sample at a few noise levels.

The residual is the distance between a sample and its denoised version, at one level and without noise. The
denoising error is the training loss of a sample: it is noised again, and the error of the recovered noise
is averaged. Neither needs a posterior or real data.

MSMA (Mahmood, Oliva and Styner) compares the norms of the predicted noise with those of real data:

    φ_j(x) = ‖ε̂(α_j·x, t_j)‖,  j = 1..L                   score = −log p(φ), or a distance between φ's

The sample is scaled to each level, but no noise is added. p is a Gaussian mixture fitted to φ of real data;
or the score is the distance to the k-th nearest φ of real data. The original takes norms of the score of a
variance-exploding model, which differ from these by a factor per level that standardization removes. It
also fits a normalizing flow, which is left out.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ...core import LEVELS
from ...core.conditions import Cond
from ...core.noise_streams import DIRECTIONS_STREAM, ERRORS_STREAM, NoiseSource, mix_seed
from ...core.validation import one_of, require_positive_int
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from .contract import Detector, Levels, Surprise, estimate_parts, find_levels, register
from .feature_fits import fit_knn, fit_mixture

DensityName = Literal["knn", "mixture"]
DENSITIES: tuple[DensityName, ...] = get_args(DensityName)
MSMA_LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)  # as fractions of T


@register
class Residual(Detector):
    """‖x − x̂0(α·x, t)‖² at one level.

    >>> flare.bench.baselines.Residual(denoiser, schedule).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        level: The noise level, as a fraction of T.
    """

    name = "residual"
    summary = "distance between a sample and its denoised version"

    def __init__(self, denoiser: Denoiser, schedule: Schedule, *, level: float = 0.1) -> None:
        self.denoiser, self.level, self.device = denoiser, schedule.at_fraction(level), denoiser.device

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call."""
        clean, _ = estimate_parts(self.denoiser, self.level, self.level.alpha * x, cond)
        return (x - clean).square().flatten(1).sum(1)[:, None]


@register
class DenoisingError(Detector):
    """The mean over levels and noises ε of the squared error in ε, ‖x − x̂0(α·x + σ·ε, t)‖²·α²/σ².

    For a network that predicts ε this is ‖ε − f‖², its training loss.

    >>> flare.bench.baselines.DenoisingError(denoiser, schedule).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        repeats: Noise draws per level.
    """

    name = "denoising_error"
    summary = "squared error of the denoiser on noised copies of a sample"
    stream = ERRORS_STREAM

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, levels: Levels = LEVELS, repeats: int = 4
    ) -> None:
        self.denoiser, self.levels = denoiser, find_levels(schedule, levels)
        self.repeats, self.device = require_positive_int("repeats", repeats), denoiser.device
        self.draws = len(self.levels) * repeats

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call per level and noise."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            for _ in range(self.repeats):
                noised = level.alpha * x + level.sigma * noise.next().to(x)
                clean, _ = estimate_parts(self.denoiser, level, noised, cond)
                total += (x - clean).square().flatten(1).sum(1) * (level.alpha / level.sigma) ** 2
        return (total / self.draws)[:, None]


@register
class MSMA(Detector):
    """How unlike those of real data the norms of the predicted noise are.

    >>> method = flare.bench.baselines.MSMA(denoiser, schedule, density="knn")
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        density: "mixture" for the density of a Gaussian mixture, or "knn" for the distance to a neighbor.
        components: The number of Gaussians in the mixture.
        neighbors: Which of the nearest neighbors of "knn" counts.
    """

    name = "msma"
    summary = "norms of the predicted noise at several levels, by a density of those of real data"

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = MSMA_LEVELS,
        density: DensityName = "mixture",
        components: int = 5,
        neighbors: int = 5,
    ) -> None:
        self.denoiser, self.levels = denoiser, find_levels(schedule, levels)
        self.density, self.device = one_of("density", density, DENSITIES), denoiser.device
        self.components = require_positive_int("components", components)
        self.neighbors = require_positive_int("neighbors", neighbors)
        self.needed = max(2, neighbors if density == "knn" else components)  # 2 for a standard deviation

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """‖ε̂(α·x, t)‖ at each level; one network call per level."""
        predicted = (estimate_parts(self.denoiser, at, at.alpha * x, cond)[1] for at in self.levels)
        return torch.stack([each.flatten(1).norm(dim=1) for each in predicted], 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        if self.density == "knn":
            return fit_knn(real, self.neighbors)
        return fit_mixture(real, self.components, mix_seed(seed, DIRECTIONS_STREAM))
