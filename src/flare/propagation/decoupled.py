"""The decoupled rule: the paper's recursion, V' = a²·V + b²·diag(J Σ Jᵀ)."""

from __future__ import annotations

from torch import Tensor

from .additive import Additive, State


class Decoupled(Additive):
    """Each step is carried on by the a's of the steps after it."""

    name = "decoupled"

    def add(self, state: State, a: float, own: Tensor) -> Tensor:
        """a²·V + own."""
        return a**2 * state.variance + own
