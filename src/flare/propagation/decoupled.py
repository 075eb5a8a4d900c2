"""The decoupled rule: the paper's recursion, V' = a²·V + b²·diag(J Σ Jᵀ)."""

from __future__ import annotations

from torch import Tensor

from .additive import Additive, State
from .rules import RULES, RuleSpec


class Decoupled(Additive):
    """The sum of the earlier steps is multiplied by a² at every step."""

    name = "decoupled"

    def add(self, state: State, a: float, own: Tensor) -> Tensor:
        """a²·V + own."""
        return a**2 * state.variance + own


RULES.register(
    RuleSpec(
        "decoupled",
        "the paper's recursion, V' = a²·V + b²·diag(J Σ Jᵀ)",
        build=lambda given: Decoupled(given.denoiser, given.subset, given.directions),
    )
)
