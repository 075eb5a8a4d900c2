"""What the decoupled and the released rule share: they add up b²·J Σ Jᵀ over the steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.steps import Step
from ..results.spread import Spread
from .rules import Ingredients
from .trajectory import Rule


@dataclass(frozen=True)
class State:
    """The sums so far, Π a² of the steps so far, and the conditions of the batch.

    Attributes:
        variance: the diagonal, (B, *shape).
        covariance: the rows of the full matrix, (d, B, *shape); None if it is not asked for.
        passed: Π a².
        cond: the conditions.
    """

    variance: Tensor
    covariance: Tensor | None
    passed: float
    cond: Cond


class Additive(Rule):
    """A sum over the steps, with J the parameter Jacobian at the realized state.

    There is no ∂f/∂x: the rule ignores how earlier steps move the state. It ignores clipping, too.

    Args:
        given: the network, the uncertain parameters and directions of the posterior.
    """

    name: ClassVar[str]
    keeps_covariance = True

    def __init__(self, given: Ingredients) -> None:
        self.push = Push(given.denoiser, given.subset, given.directions)
        self.covariance = given.covariance

    @abstractmethod
    def add(self, total: Tensor, passed: float, a: float, own: Tensor) -> Tensor:
        """Add b²·J Σ Jᵀ of a step, `own`, to the sum; `passed` is Π a² of the steps before it."""

    def coefficients(self, row: Step) -> tuple[float, float]:
        """a and b of a step; by default those of the row without clipping, x' = a·x + b·f + c·z."""
        return row.linear

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> State:
        """Start with empty sums."""
        if history > 1:
            raise ValueError(
                f"{self.name} needs a one-step sampler; this one keeps {history} terms. Use rule='tangent'."
            )
        covariance = x.new_zeros(x[0].numel(), *x.shape) if self.covariance else None
        return State(torch.zeros_like(x), covariance, 1.0, cond)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """Compute f, and the sums after the row."""
        f, df = self.push(x, None, t, state.cond)
        a, b = self.coefficients(row)
        covariance = state.covariance
        if covariance is not None:
            flat = b * df.flatten(2)
            own = torch.einsum("kbi,kbj->ibj", flat, flat).view_as(covariance)
            covariance = self.add(covariance, state.passed, a, own)
        variance = self.add(state.variance, state.passed, a, b**2 * df.square().sum(0))
        return f, State(variance, covariance, state.passed * a**2, state.cond)

    def trace(self, state: State) -> Tensor:
        """The trace of the sum so far."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseSource) -> Spread:
        """Return the sums; no directions are kept."""
        covariance = None if state.covariance is None else state.covariance.flatten(2).transpose(0, 1)
        return Spread(x, state.variance, None, None, state.cond, covariance=covariance)

    def map_state(self, state: State, function: Callable[[Tensor], Tensor]) -> State:
        """Map the sums."""
        covariance = None if state.covariance is None else function(state.covariance)
        return replace(state, variance=function(state.variance), covariance=covariance)
