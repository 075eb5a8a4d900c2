"""Square roots of Σ, by which the features of gradients are multiplied: ‖Dᵀv‖² = vᵀΣv."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ..network.coordinates import Subset
from .posterior import Posterior

LARGEST = 2048  # columns
_BYTES = 2**28  # of draws, if Σ has many coordinates
_FEWEST = 64  # draws, however many coordinates
_ITERATIVE = 128  # draws of a posterior that solves a system for each of them


@dataclass(frozen=True, eq=False)
class Root:
    """D (m, r) with D Dᵀ = Σ: exactly, or on average over draws from the posterior.

    Attributes:
        subset: The coordinates of Σ.
        exact: D with as many columns as Σ has coordinates, if they are at most `LARGEST`.
        draws: Draws from N(0, Σ), (m, k).
    """

    subset: Subset
    exact: Tensor | None
    draws: Tensor

    @classmethod
    def of(cls, posterior: Posterior, seed: int) -> Root:
        """The root of a posterior; all processes make it together."""
        generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
        exact, count = None, min(LARGEST, max(_FEWEST, _BYTES // (8 * posterior.size)))
        if posterior.needs_all_processes:
            count = min(count, _ITERATIVE)
        elif posterior.size <= LARGEST:
            exact = posterior.exact_directions()
        return cls(posterior.subset, exact, posterior.draw(count, generator).T)

    def project(self, v: Tensor, size: int, block: int = 0) -> Tensor:
        """Dᵀv, (..., r) float64 on the CPU with r at most `size`, for vectors v (..., m).

        Args:
            v: The vectors.
            size: The largest number of features.
            block: The index of a block of features. Blocks use different draws if there are enough.
        """
        v = v.to(self.draws)
        if self.exact is not None and self.exact.shape[1] <= size:
            return v @ self.exact
        size = min(size, self.draws.shape[1])
        first = block % (self.draws.shape[1] // size) * size
        return v @ self.draws[:, first : first + size] / size**0.5
