"""Balls around real features that reach to their k-th neighbors, shared by realism and density."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from .feature_fits import distances


@dataclass(frozen=True)
class FlatFeatures:
    """φ(x) as vectors, (B, k).

    Attributes:
        features: φ, (B, *shape) -> (B, ...); None for the identity.
    """

    features: Callable[[Tensor], Tensor] | None = None
    draws = 0  # no noise

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Apply φ."""
        return (x if self.features is None else self.features(x)).flatten(1)


@dataclass(frozen=True)
class Balls:
    """One ball per real sample.

    Attributes:
        centers: the features of the real samples, (m, k).
        radii: the distance of each to its k-th nearest other real sample, (m,).
    """

    centers: Tensor
    radii: Tensor

    @classmethod
    def around(cls, real: Tensor, neighbors: int) -> Balls:
        """The balls of features (m, k); `neighbors` must be less than m."""
        # the nearest sample is the sample itself, at distance 0
        radii = [d.kthvalue(neighbors + 1, 1).values for d in distances(real, real)]
        return cls(real, torch.cat(radii))

    def distances(self, features: Tensor) -> Iterator[Tensor]:
        """Distances to the centers, some rows (b, m) at a time."""
        return distances(features, self.centers)
