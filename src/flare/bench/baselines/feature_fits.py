"""Fits to the features of real data: each gives one number per sample, larger for a sample less like them.

| fit | the number for features φ |
|---|---|
| `Knn` | distance to the k-th nearest real features, standardized |
| `Mixture` | −log p(φ) by a Gaussian mixture on standardized features |
| `Kde` | −log p(φ) by a Gaussian kernel density |
| `Gaussian` | −Σ_j log N(φ_j; mean_j, variance_j) with independent features j |
| `ZScore` | the mean over j of (φ_j − mean_j)/deviation_j |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from ...core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ...core.validation import one_of, require_positive_int

Surprise = Callable[[Tensor], Tensor]  # (n, k) -> (n,), float64
Density = Literal["knn", "mixture"]
DENSITIES: tuple[Density, ...] = get_args(Density)
MEMORY = 64 * 2**20  # the most bytes of distances per chunk


class FeatureFit(Protocol):
    """A way to compare features with those of real data."""

    @property
    def needed(self) -> int:
        """The fewest real samples that it can be fitted to."""

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Fit to the features of real data, (m, k) float64; the result scores others, (n, k) -> (n,)."""


@dataclass(frozen=True)
class Knn:
    """Distance to the k-th nearest real features.

    Attributes:
        neighbors: k.
    """

    neighbors: int = 5

    def __post_init__(self) -> None:
        require_positive_int("neighbors", self.neighbors)

    @property
    def needed(self) -> int:
        """k, and 2 for a standard deviation."""
        return max(2, self.neighbors)

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Keep the standardized features."""
        scale = _Scale.of(real)
        known = scale.apply(real)

        def distance(features: Tensor) -> Tensor:
            parts = [d.kthvalue(self.neighbors, 1).values for d in distances(scale.apply(features), known)]
            return torch.cat(parts)

        return distance


@dataclass(frozen=True)
class Mixture:
    """−log p by a Gaussian mixture with full covariances (scikit-learn).

    Attributes:
        components: how many Gaussians.
    """

    components: int = 5

    def __post_init__(self) -> None:
        require_positive_int("components", self.components)

    @property
    def needed(self) -> int:
        """One sample per component, and 2 for a standard deviation."""
        return max(2, self.components)

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Fit by expectation maximization, started from k-means with a seed of its own."""
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.mixture import GaussianMixture
        except ImportError as error:
            raise ImportError(
                "a Gaussian mixture needs scikit-learn: pip install scikit-learn. "
                "density='knn' works without it."
            ) from error
        scale = _Scale.of(real)
        own = mix_seed(seed, DIRECTIONS_STREAM) % 2**32
        mixture = GaussianMixture(self.components, max_iter=500, random_state=own)
        with warnings.catch_warnings():
            # the iterations are a budget; k-means finds fewer centers among equal features
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(scale.apply(real).numpy())
        return lambda features: -torch.from_numpy(mixture.score_samples(scale.apply(features).numpy()))


@dataclass(frozen=True)
class Kde:
    """−log p by a Gaussian kernel density with Scott's bandwidth, m^(−1/(k+4)) standard deviations."""

    needed = 2  # for a standard deviation

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Keep the features in units of the bandwidth."""
        m, k = real.shape
        scale = _Scale.of(real, m ** (-1 / (k + 4)))
        known = scale.apply(real)
        constant = math.log(m) + float(scale.unit.log().sum()) + k / 2 * math.log(2 * math.pi)

        def surprise(features: Tensor) -> Tensor:
            parts = [(-d.square() / 2).logsumexp(1) for d in distances(scale.apply(features), known)]
            return constant - torch.cat(parts)

        return surprise


@dataclass(frozen=True)
class Gaussian:
    """−log p by independent Gaussians; a feature that is constant on real data is left out."""

    needed = 2  # for a standard deviation

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Take the mean and the variance of each feature."""
        vary = real.std(0) > 0
        scale = _Scale.of(real[:, vary])
        constant = float((scale.unit.log() + math.log(2 * math.pi) / 2).sum())
        return lambda features: scale.apply(features[:, vary]).square().sum(1) / 2 + constant


@dataclass(frozen=True)
class ZScore:
    """The mean of the standardized features."""

    needed = 2  # for a standard deviation

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Take the mean and the standard deviation of each feature."""
        scale = _Scale.of(real)
        return lambda features: scale.apply(features).mean(1)


def find_density(density: Density | FeatureFit | str) -> FeatureFit:
    """The fit of this name with its defaults, or the fit that was given."""
    if not isinstance(density, str):
        return density
    one_of("density", density, DENSITIES)
    return Knn() if density == "knn" else Mixture()


def distances(features: Tensor, known: Tensor) -> Iterator[Tensor]:
    """The distances ‖φ_i − known_j‖, some rows (b, m) at a time; equal features have distance 0."""
    rows = max(1, MEMORY // (known.element_size() * len(known)))
    for some in features.split(rows):
        # without matrix products, whose rounding makes equal features differ
        yield torch.cdist(some, known, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True)
class _Scale:
    """Standardization: (φ − mean)/unit.

    Attributes:
        mean: of each feature, (k,).
        unit: the standard deviation of each feature times a factor, (k,); 1 where it is 0.
    """

    mean: Tensor
    unit: Tensor

    @classmethod
    def of(cls, real: Tensor, factor: float = 1.0) -> _Scale:
        """The scale of features (m, k)."""
        deviation = real.std(0)
        return cls(real.mean(0), torch.where(deviation > 0, factor * deviation, torch.ones_like(deviation)))

    def apply(self, features: Tensor) -> Tensor:
        """Standardize features, (n, k)."""
        return (features - self.mean) / self.unit
