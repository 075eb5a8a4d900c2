"""Fits to the features of real data: each gives one number per sample, larger for a sample less like them.

| fit | the number for features φ |
|---|---|
| `fit_knn` | distance to the k-th nearest real features, standardized |
| `fit_mixture` | −log p(φ) by a Gaussian mixture on standardized features |
| `fit_kde` | −log p(φ) by a Gaussian kernel density |
| `fit_gaussian` | −Σ_j log N(φ_j; mean_j, variance_j) with independent features j |
| `fit_z_score` | the mean over j of (φ_j − mean_j)/deviation_j |

All take the features of real data, (m, k) float64, and return a function (n, k) -> (n,).
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

from .contract import Surprise


def fit_knn(real: Tensor, neighbors: int) -> Surprise:
    """Distance to the k-th nearest real features, in units of the standard deviation of each feature."""
    scale, _ = _standardize(real)
    known = scale(real)
    return lambda features: reduce_distances(
        scale(features), known, lambda d, start: np.partition(d, neighbors - 1)[:, neighbors - 1]
    )


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
