"""The decoupled rule: the paper's recursion, V' = a²·V + b²·J Σ Jᵀ, with either of its sets of coefficients.

The main text prints the coefficients of the sampler itself: for DDPM, a = 1/√α_t and b = β_t/(√α_t·√(1−ᾱ_t)).
Appendix A prints a = (1 − β_t/√(1−ᾱ_t))/√α_t and b = √(β_t/α_t). That is not the update of DDPM, but as a
weighting it contracts, where the main text's grows.
"""

from __future__ import annotations

from torch import Tensor

from ..diffusion.steps import Step, Steps
from .additive import Additive
from .rules import RULES, Ingredients, RuleSpec


class Decoupled(Additive):
    """The sum of the earlier steps is multiplied by a² at every step.

    Args:
        given: the network, the uncertain parameters, directions, the sampler's table and which coefficients.
    """

    name = "decoupled"

    def __init__(self, given: Ingredients) -> None:
        super().__init__(given)
        self._own = None if given.coefficients == "main" else _appendix(given.steps)

    def coefficients(self, row: Step) -> tuple[float, float]:
        """a and b of a step."""
        if self._own is None:
            return row.linear
        a, b, factor = self._own[row.time]
        return a, b * factor * row.q

    def add(self, total: Tensor, passed: float, a: float, own: Tensor) -> Tensor:
        """a²·V + own."""
        return a**2 * total + own


def _appendix(steps: Steps) -> dict[float, tuple[float, float, float]]:
    """a, b and ∂ε/∂x̂0 of every step by its time, with α_t = ᾱ_t/ᾱ' for the level ᾱ' of the next step."""
    if not steps.schedule.variance_preserving:
        raise ValueError(
            "coefficients='appendix' are those of DDPM and need a variance-preserving schedule, got "
            f"{steps.schedule!r}; use coefficients='main', which are the sampler's own."
        )
    levels = [transition.level for transition in steps.transitions]
    found = {}
    for here, alpha_next in zip(levels, [*(level.alpha for level in levels[1:]), 1.0], strict=True):
        alpha = (here.alpha / alpha_next) ** 2
        a = (1 - (1 - alpha) / here.sigma) / alpha**0.5
        b = ((1 - alpha) / alpha) ** 0.5
        found[here.time] = a, b, -here.alpha / here.sigma  # ε = (x − α·x̂0)/σ
    return found


RULES.register(
    RuleSpec(
        "decoupled",
        "the paper's recursion, V' = a²·V + b²·diag(J Σ Jᵀ)",
        build=Decoupled,
        coefficients=("main", "appendix"),
    )
)
