"""Realism score (Kynkäänniemi et al.): the distance to real samples in units of how dense they are there.

    R(x) = max_r  radius_r/‖φ(x) − φ(r)‖                   score = 1/R(x) = min_r ‖φ(x) − φ(r)‖/radius_r

radius_r is the distance of a real sample r to its k-th nearest real neighbor. Real samples with a radius
above the median are left out. R is large for realistic samples, so the score is its inverse: up to 1, x lies
in the ball of a real sample. No model is called. The original takes features of a VGG network; here φ is the
caller's, or the data itself. Copies among real samples count once here, since their radius would be 0.
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

NEIGHBORS = 3


@dataclass(frozen=True)
class NearestBall:
    """The smallest distance to a center in units of its radius.

    Attributes:
        neighbors: k.
    """

    neighbors: int = NEIGHBORS

    @property
    def needed(self) -> int:
        """Each real sample has k others."""
        return self.neighbors + 1

    def fit(self, real: Tensor, seed: int) -> Surprise:
        """Keep the balls whose radius is at most the median."""
        real = torch.unique(real, dim=0)
        if len(real) < self.needed:
            raise ValueError(
                f"realism needs at least {self.needed} different real samples, got {len(real)}; give more."
            )
        balls = Balls.around(real, self.neighbors)
        small = balls.radii <= balls.radii.median()
        balls = Balls(balls.centers[small], balls.radii[small])
        return lambda features: torch.cat([(d / balls.radii).amin(1) for d in balls.distances(features)])


def realism(
    x: Tensor,
    real: Tensor,
    neighbors: int = NEIGHBORS,
    features: Callable[[Tensor], Tensor] | None = None,
    **options: Unpack[CompareOptions],
) -> Tensor:
    """The inverse realism score, min_r ‖φ(x) − φ(r)‖/radius_r, (n,).

    >>> flare.bench.baselines.realism(result.samples, data[:50]).shape
    torch.Size([20])

    Args:
        x: finished samples, (n, *shape).
        real: real data, (m, *shape).
        neighbors: k.
        features: φ, (B, *shape) -> (B, ...), such as an image encoder; by default the identity.
        **options: first and batch_size; see `Comparison.score`.
    """
    return make_realism(neighbors, features).score(x, real, **options)


def make_realism(
    neighbors: int = NEIGHBORS, features: Callable[[Tensor], Tensor] | None = None
) -> Comparison:
    """The method, to fit it once and score samples many times; see `realism`.

    >>> flare.bench.baselines.make_realism().fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    how = NearestBall(require_positive_int("neighbors", neighbors))
    return Comparison("realism", FlatFeatures(features), how)


register_comparison(
    "realism",
    "distance to real samples in units of their distance to each other; no model",
    lambda given: make_realism(**given.options),
    options=("neighbors",),
)
