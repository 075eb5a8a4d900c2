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

    def width(self, size: int) -> int:
        """r, the number of columns of D if at most `size` are wanted."""
        if self.exact is not None and self.exact.shape[1] <= size:
            return self.exact.shape[1]
        return min(size, self.draws.shape[1])

    def multiply(self, v: Tensor, size: int, block: int = 0) -> Tensor:
        """v D for rows v (n, m), (n, r); blocks of draws differ, as far as there are enough of them.

        D is not copied: it may be large.
        """
        v = v.to(self.draws)
        if self.exact is not None and self.exact.shape[1] <= size:
            return v @ self.exact
        count, size = self.draws.shape[1], self.width(size)
        first = block * size % count
        parts = [self.draws[:, first : first + size], self.draws[:, : max(0, first + size - count)]]
        return torch.cat([v @ part for part in parts], dim=1) / size**0.5

    def to(self, device: torch.device) -> Root:
        """The same on another device."""
        exact = None if self.exact is None else self.exact.to(device)
        return Root(self.subset, exact, self.draws.to(device))
