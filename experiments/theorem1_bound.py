"""The constants κ, μ and γ of Theorem 1, from Jacobians, and the bound that they give.

With A = J_popᵀ = U S Wᵀ (p × k, full rank) and B = J_tᵀ: κ is the condition number of A; the coherence μ is
the largest squared row norm of U; the alignment γ is the largest number with ‖P B‖² ≥ γ·‖(I − P) B‖², where
P = U Uᵀ.
None of them depends on a factor of J_pop, such as the 1/n of H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DELTA = 0.05  # the bound holds with probability 1 − δ


@dataclass(frozen=True)
class Constants:
    """The constants of the theorem for one J_pop and one J_t, or several stacked.

    Attributes:
        parameters: p.
        rows: k = n·d, of J_pop.
        condition: κ.
        coherence: μ, between k/p and 1.
        alignment: γ of all rows of J_t.
        alignments: γ of each block of rows, one block per step.
    """

    parameters: int
    rows: int
    condition: float
    coherence: float
    alignment: float
    alignments: list[float]

    @classmethod
    def of(cls, J_pop: Tensor, J_t: Tensor, block: int) -> Constants:
        """Compute them by a singular value decomposition of J_pop (k, p).

        Args:
            J_pop: fewer rows than columns, of full rank.
            J_t: (rows, p).
            block: rows of J_t per step.
        """
        k, p = J_pop.shape
        if k > p:
            raise ValueError(f"J_pop must have at most as many rows as columns, got {k:,} by {p:,}.")
        _, singular, basis = torch.linalg.svd(J_pop, full_matrices=False)
        inside = (J_t @ basis.T).square().sum(1).view(-1, block).sum(1)
        # not the difference of the squared norms, which rounds to nothing where J_t is nearly inside
        outside = (J_t - (J_t @ basis.T) @ basis).square().sum(1).view(-1, block).sum(1)
        return cls(
            parameters=p,
            rows=k,
            condition=float(singular[0] / singular[-1]),
            coherence=float(basis.square().sum(0).max()),
            alignment=float(inside.sum() / outside.sum()),
            alignments=(inside / outside).tolist(),
        )

    def printed(self, m: int, alignment: float | None = None) -> float:
        """√(p·γ·μ/(m·δ))·κ, the bound of the relative error without the constants and logarithms of Õ."""
        gamma = self.alignment if alignment is None else alignment
        return math.sqrt(self.parameters * gamma * self.coherence / (m * DELTA)) * self.condition

    def corrected(self, m: int, alignment: float | None = None) -> float:
        """√(p·μ/(m·δ·γ))·κ, with 1/γ in place of γ."""
        return self.printed(m, 1 / (self.alignment if alignment is None else alignment))

    @property
    def needed(self) -> float:
        """The m at which the corrected bound is 1."""
        return self.corrected(1) ** 2
