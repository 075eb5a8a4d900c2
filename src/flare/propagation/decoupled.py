"""The paper's recursion and its variants: they add up b²·J Σ Jᵀ over the steps.

- `decoupled` is V' = a²·V + b²·J Σ Jᵀ with the coefficients of the main text, which are the sampler's own:
  for DDPM, a = 1/√α_t and b = β_t/(√α_t·√(1−ᾱ_t)).
- `decoupled_appendix` takes those of Appendix A, a = (1 − β_t/√(1−ᾱ_t))/√α_t and b = √(β_t/α_t). This is not
  the update of DDPM, but as a weighting it contracts, whereas that of the main text grows.
- `released` is the weighting in the authors' published code, U = Σ_t (Π_{s>t} a_s²)·b_t²·diag(J_t Σ J_tᵀ),
  whereas the recursion of the paper has Π_{s<t}.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.steps import Step, Steps
from ..results.result import Spread
from .trajectory import RULES, Ingredients, Rule


class RunningSums(NamedTuple):
    """The sums so far, Π a² of the steps so far, and the conditions of the batch.

    Attributes:
        variance: The diagonal, (B, *shape).
        covariance: The rows of the full matrix, (d, B, *shape); None if it is not requested.
        passed: Π a².
        cond: The conditions.
    """

    variance: Tensor
    covariance: Tensor | None
    passed: float
    cond: Cond


@RULES.register
class Decoupled(Rule):
    """V' = a²·V + b²·J Σ Jᵀ, with J the parameter Jacobian at the realized state.

    There is no ∂f/∂x: the rule ignores how earlier steps move the state. It also ignores clipping.

    Args:
        given: The network, the uncertain parameters, directions, the sampler's table, and whether full
            matrices are requested.
    """

    name = "decoupled"
    summary = "the paper's recursion, V' = a²·V + b²·diag(J Σ Jᵀ)"
    keeps_covariance = True

    def __init__(self, given: Ingredients) -> None:
        self.push = Push(given.denoiser, given.subset, given.directions)
        self.covariance = given.covariance

    @classmethod
    def build(cls, given: Ingredients) -> Decoupled:
        """Make the rule for a posterior."""
        return cls(given)

    def coefficients(self, row: Step) -> tuple[float, float]:
        """a and b of a step, from the row without clipping, x' = a·x + b·f + c·z."""
        return row.linear

    def add(self, total: Tensor, passed: float, a: float, own: Tensor) -> Tensor:
        """Add b²·J Σ Jᵀ of a step, `own`, to the sum; `passed` is Π a² of the steps before it."""
        return a**2 * total + own

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> RunningSums:
        """Start with empty sums."""
        if history > 1:
            raise ValueError(
                f"{self.name} needs a one-step sampler; this one keeps {history} terms. Use rule='tangent'."
            )
        covariance = x.new_zeros(x[0].numel(), *x.shape) if self.covariance else None
        return RunningSums(torch.zeros_like(x), covariance, 1.0, cond)

    def step(
        self, state: RunningSums, row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, RunningSums]:
        """Compute f, and the sums after the row."""
        f, df = self.push(x, None, t, state.cond)
        a, b = self.coefficients(row)
        covariance = state.covariance
        if covariance is not None:
            flat = b * df.flatten(2)
            own = torch.einsum("kbi,kbj->ibj", flat, flat).view_as(covariance)
            covariance = self.add(covariance, state.passed, a, own)
        variance = self.add(state.variance, state.passed, a, b**2 * df.square().sum(0))
        return f, RunningSums(variance, covariance, state.passed * a**2, state.cond)

    def trace(self, state: RunningSums) -> Tensor:
        """The trace of the sum so far."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: RunningSums, x: Tensor, noise: NoiseSource) -> Spread:
        """Return the sums; no directions are kept."""
        covariance = None if state.covariance is None else state.covariance.flatten(2).transpose(0, 1)
        return Spread(x, state.variance, None, None, state.cond, covariance=covariance)


@RULES.register
class DecoupledAppendix(Decoupled):
    """The recursion with the coefficients of Appendix A."""

    name = "decoupled_appendix"
    summary = "the recursion with the coefficients of the paper's Appendix A"

    def __init__(self, given: Ingredients) -> None:
        super().__init__(given)
        self._table = _compute_appendix(given.steps)

    def coefficients(self, row: Step) -> tuple[float, float]:
        """a and b of a step."""
        a, b, factor = self._table[row.time]
        return a, b * factor * row.q


@RULES.register
class Released(Decoupled):
    """The recursion that multiplies each step by the a² of the noisier steps."""

    name = "released"
    summary = "the weighting of the authors' published code"

    def add(self, total: Tensor, passed: float, a: float, own: Tensor) -> Tensor:
        """U + Π a²·own."""
        return total + passed * own


def _compute_appendix(steps: Steps) -> dict[float, tuple[float, float, float]]:
    """a, b and ∂ε/∂x̂0 of every step by its time, with α_t = ᾱ_t/ᾱ' for the level ᾱ' of the next step."""
    if not steps.schedule.variance_preserving:
        raise ValueError(
            "decoupled_appendix has coefficients of DDPM and needs a variance-preserving schedule, got "
            f"{steps.schedule!r}; use rule='decoupled', which takes the sampler's own."
        )
    levels = [transition.level for transition in steps.transitions]
    found = {}
    for here, alpha_next in zip(levels, [*(level.alpha for level in levels[1:]), 1.0], strict=True):
        alpha = (here.alpha / alpha_next) ** 2
        a = (1 - (1 - alpha) / here.sigma) / alpha**0.5
        b = ((1 - alpha) / alpha) ** 0.5
        found[here.time] = a, b, -here.alpha / here.sigma  # ε = (x − α·x̂0)/σ
    return found
