"""The released rule: the weighting in the authors' published code.

U = Σ_t (Π_{s>t} a_s²)·b_t²·diag(J_t Σ J_tᵀ), where the recursion of the paper has Π_{s<t}.
"""

from __future__ import annotations

from torch import Tensor

from .additive import Additive
from .rules import RULES, RuleSpec


class Released(Additive):
    """Each step is multiplied by the a² of the noisier steps, which the loop has passed already."""

    name = "released"

    def add(self, total: Tensor, passed: float, a: float, own: Tensor) -> Tensor:
        """U + Π a²·own."""
        return total + passed * own


RULES.register(
    RuleSpec(
        "released",
        "the weighting of the authors' published code",
        build=Released,
    )
)
