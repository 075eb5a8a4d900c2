"""Fits to the features of real data: each gives one number per sample, larger for a sample less like them.

| fit | the number for features φ |
|---|---|
| `fit_mixture` | −log p(φ) by a Gaussian mixture on standardized features |
| `fit_kde` | −log p(φ) by a Gaussian kernel density |
| `fit_gaussian` | −Σ_j log N(φ_j; mean_j, variance_j) with independent features j |
| `fit_z_score` | the mean over j of (φ_j − mean_j)/deviation_j |

All take the features of real data, (m, k) float64, and return a function (n, k) -> (n,).

Two detectors fit balls to real samples, and call no model. The balls reach their k-th nearest real neighbors.

Realism (Kynkäänniemi et al.) is the distance to real samples in units of how dense they are there:

    R(x) = max_r  radius_r/‖φ(x) − φ(r)‖                   score = 1/R(x) = min_r ‖φ(x) − φ(r)‖/radius_r

Real samples with a radius above the median are left out. R is large for realistic samples, so the score is
its inverse: up to 1, x lies in the ball of a real sample. Copies among real samples count once here, because
their radius would be 0. The original takes features of a VGG network; here φ is the data itself, or
what the caller gives as samples.

Density (Naeem et al.) counts the balls that contain a sample:

    density(x) = 1/k · #{r : ‖φ(x) − φ(r)‖ ≤ radius_r}      score = −density(x)

The mean of the density over samples is the published metric; here it is taken per sample and negated, because
it is large where real data is dense. Scores are multiples of 1/k, and all samples in no ball have the same
score, 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_chunked
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from .contract import Detector, Surprise, register


def fit_mixture(real: Tensor, components: int, seed: int) -> Surprise:
    """−log p by a Gaussian mixture with full covariances, started from k-means."""
    scale, _ = _standardize(real)
    mixture = GaussianMixture(components, max_iter=500, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # the iterations are a budget; k-means finds fewer centers among equal features
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(scale(real))
    return lambda features: -torch.from_numpy(mixture.score_samples(scale(features)))


def fit_kde(real: Tensor) -> Surprise:
    """−log p by a Gaussian kernel density with Scott's bandwidth, m^(−1/(k+4)) standard deviations."""
    m, k = real.shape
    scale, unit = _standardize(real)
    kernels = KernelDensity(bandwidth=m ** (-1 / (k + 4))).fit(scale(real))
    constant = float(unit.log().sum())
    return lambda features: constant - torch.from_numpy(kernels.score_samples(scale(features)))


def fit_gaussian(real: Tensor) -> Surprise:
    """−log p by independent Gaussians; a feature that is constant on real data is left out."""
    mean, deviation = real.mean(0), real.std(0)
    vary = deviation > 0
    density = norm(mean[vary], deviation[vary])
    return lambda features: -torch.from_numpy(density.logpdf(features[:, vary]).sum(1))


def fit_z_score(real: Tensor) -> Surprise:
    """The mean of the standardized features."""
    scale, _ = _standardize(real)
    return lambda features: torch.from_numpy(scale(features).mean(1))


def reduce_distances(features: Any, known: Any, reduce: Callable[[Any, int], Any]) -> Tensor:
    """Apply `reduce` to the distances (b, m) of some features to all known ones, for all features, (n,)."""
    # this metric has no matrix products, whose rounding makes equal features differ
    parts = pairwise_distances_chunked(features, known, reduce_func=reduce, metric="minkowski", p=2)
    return torch.from_numpy(np.concatenate(list(parts)))


def _standardize(real: Tensor) -> tuple[Callable[[Tensor], Any], Tensor]:
    """The function (φ − mean)/deviation to an array, and the deviations; 1 for constant features."""
    mean, deviation = real.mean(0), real.std(0)
    unit = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return lambda features: ((features - mean) / unit).numpy(), unit


class _RealBalls(Detector):
    """The common part of both: the features and the radii."""

    def __init__(self, neighbors: int) -> None:
        self.neighbors = require_positive_int("neighbors", neighbors)
        self.needed = neighbors + 1  # each real sample has k others

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """The samples as vectors."""
        return x.flatten(1)

    def radii(self, real: Tensor) -> Tensor:
        """The distance of each real sample to its k-th nearest other real sample, (m,)."""
        k = self.neighbors  # the nearest sample is the sample itself, at distance 0
        return reduce_distances(real, real, lambda d, start: np.partition(d, k)[:, k])


@register
class Realism(_RealBalls):
    """The inverse realism score, min_r ‖φ(x) − φ(r)‖/radius_r. It calls no model.

    >>> flare.bench.baselines.Realism().fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        neighbors: k.
    """

    name = "realism"
    summary = "distance to real samples in units of their distance to each other; no model"

    def __init__(self, *, neighbors: int = 3) -> None:
        super().__init__(neighbors)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Keep the balls whose radius is at most the median."""
        real = torch.unique(real, dim=0)
        if len(real) < self.needed:
            raise ValueError(
                f"realism needs at least {self.needed} different real samples, got {len(real)}; give more."
            )
        radii = self.radii(real)
        small = radii <= radii.median()
        centers, own = real[small], radii[small].numpy()
        return lambda features: reduce_distances(features, centers, lambda d, start: (d / own).min(1))


@register
class Density(_RealBalls):
    """Minus the density of real samples around each sample. It calls no model.

    >>> flare.bench.baselines.Density().fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        neighbors: k.
    """

    name = "density"
    summary = "minus the number of real samples with the sample among their nearest neighbors; no model"

    def __init__(self, *, neighbors: int = 5) -> None:
        super().__init__(neighbors)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Keep all balls; they are closed."""
        radii = self.radii(real).numpy()
        return lambda features: (
            -reduce_distances(features, real, lambda d, start: (d <= radii).sum(1)).double() / self.neighbors
        )
