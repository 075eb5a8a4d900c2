"""Density (Naeem et al.): how many real samples have a sample in the ball that reaches their k-th neighbor.

    density(x) = 1/k · #{r : ‖φ(x) − φ(r)‖ ≤ radius_r}      score = −density(x)

radius_r is the distance of a real sample r to its k-th nearest real neighbor. The mean of the density over
samples is the published metric; here it is taken per sample, negated, since it is large where real data is
dense. Scores are multiples of 1/k, and samples in no ball at all have the same score, 0. No model is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.validation import require_positive_int
from .catalog import register_comparison
from .comparison import CompareOptions, Comparison
from .feature_fits import Surprise
from .real_balls import Balls, FlatFeatures

NEIGHBORS = 5


@dataclass(frozen=True)
class BallCount:
    """Minus the number of balls that contain a sample, over k.

    Attributes:
        neighbors: k.
    """

    neighbors: int = NEIGHBORS

    @property
    def needed(self) -> int:
        """Each real sample has k others."""
        return self.neighbors + 1

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Keep all balls; they are closed."""
        balls = Balls.around(real, self.neighbors)

        def count(features: Tensor) -> Tensor:
            inside = [(d <= balls.radii).sum(1) for d in balls.distances(features)]
            return -torch.cat(inside).double() / self.neighbors

        return count


def density(
    x: Tensor,
    real: Tensor,
    neighbors: int = NEIGHBORS,
    features: Callable[[Tensor], Tensor] | None = None,
    **options: Unpack[CompareOptions],
) -> Tensor:
    """Minus the density of real samples around each sample, (n,).

    >>> flare.bench.baselines.density(result.samples, data[:50]).shape
    torch.Size([20])

    Args:
        x: finished samples, (n, *shape).
        real: real data, (m, *shape).
        neighbors: k.
        features: φ, (B, *shape) -> (B, ...), such as an image encoder; by default the identity.
        **options: first and batch_size; see `Comparison.score`.
    """
    return make_density(neighbors, features).score(x, real, **options)


def make_density(
    neighbors: int = NEIGHBORS, features: Callable[[Tensor], Tensor] | None = None
) -> Comparison:
    """The method, to fit it once and score samples many times; see `density`.

    >>> flare.bench.baselines.make_density().fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    how = BallCount(require_positive_int("neighbors", neighbors))
    return Comparison("density", FlatFeatures(features), how)


register_comparison(
    "density",
    "how many real samples have the sample among their nearest neighbors, negated; no model",
    lambda given: make_density(**given.options),
    options=("neighbors",),
)
