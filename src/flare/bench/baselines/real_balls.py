"""Realism and density: balls around real samples that reach their k-th nearest real neighbors.

Realism (Kynkäänniemi et al.) is the distance to real samples in units of how dense they are there:

    R(x) = max_r  radius_r/‖φ(x) − φ(r)‖                   score = 1/R(x) = min_r ‖φ(x) − φ(r)‖/radius_r

Real samples with a radius above the median are left out. R is large for realistic samples, so the score is
its inverse: up to 1, x lies in the ball of a real sample. Copies among real samples count once here, since
their radius would be 0. The original takes features of a VGG network; here φ is the caller's, or the data
itself.

Density (Naeem et al.) counts the balls that contain a sample:

    density(x) = 1/k · #{r : ‖φ(x) − φ(r)‖ ≤ radius_r}      score = −density(x)

The mean of the density over samples is the published metric; here it is taken per sample and negated, since
it is large where real data is dense. Scores are multiples of 1/k, and all samples in no ball have the same
score, 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from .contract import Detector, Surprise, register
from .feature_fits import reduce_distances


class _RealBalls(Detector):
    """What both have in common: the features and the radii."""

    def __init__(self, features: Callable[[Tensor], Tensor] | None, neighbors: int) -> None:
        self.phi, self.neighbors = features, require_positive_int("neighbors", neighbors)
        self.needed = neighbors + 1  # each real sample has k others

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """φ(x) as vectors."""
        return (x if self.phi is None else self.phi(x)).flatten(1)

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
        features: φ, (B, *shape) -> (B, ...), such as an image encoder; by default the identity.
        neighbors: k.
    """

    name = "realism"
    summary = "distance to real samples in units of their distance to each other; no model"

    def __init__(self, features: Callable[[Tensor], Tensor] | None = None, *, neighbors: int = 3) -> None:
        super().__init__(features, neighbors)

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
        features: φ, (B, *shape) -> (B, ...), such as an image encoder; by default the identity.
        neighbors: k.
    """

    name = "density"
    summary = "how many real samples have the sample among their nearest neighbors, negated; no model"

    def __init__(self, features: Callable[[Tensor], Tensor] | None = None, *, neighbors: int = 5) -> None:
        super().__init__(features, neighbors)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Keep all balls; they are closed."""
        radii = self.radii(real).numpy()
        return lambda features: (
            -reduce_distances(features, real, lambda d, start: (d <= radii).sum(1)).double() / self.neighbors
        )
