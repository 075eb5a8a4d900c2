"""What the decoupled and the released rule share: they add up b²·diag(J Σ Jᵀ) over the steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.samplers import Step
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..results.spread import Spread
from .trajectory import Rule


@dataclass(frozen=True)
class State:
    """The sum so far (B, *shape), Π a² of the steps so far, and the conditions of the batch."""

    variance: Tensor
    passed: float
    cond: Cond


class Additive(Rule):
    """A sum over the steps, with J the parameter Jacobian at the realized state.

    The coefficients are those of the row without clipping, x' = a·x + b·f + c·z. There is no ∂f/∂x: the rule
    ignores how earlier steps move the state.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
    """

    name: ClassVar[str]

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.push = Push(denoiser, subset, directions)

    @abstractmethod
    def add(self, state: State, a: float, own: Tensor) -> Tensor:
        """Add the variance of a step, `own` = b²·diag(J Σ Jᵀ), to the sum."""

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> State:
        """Start with an empty sum."""
        if history > 1:
            raise ValueError(
                f"{self.name} needs a one-step sampler; this one keeps {history} terms. Use rule='tangent'."
            )
        return State(x.new_zeros(x.shape), 1.0, cond)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """Compute f, and the sum after the row."""
        f, df = self.push(x, None, t, state.cond)
        a, b = row.linear
        variance = self.add(state, a, b**2 * df.square().sum(0))
        return f, State(variance, state.passed * a**2, state.cond)

    def trace(self, state: State) -> Tensor:
        """The trace of the sum so far."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseSource) -> Spread:
        """Return the sum; no directions are kept."""
        return Spread(x, state.variance, None, None, state.cond)

    def map_state(self, state: State, function: Callable[[Tensor], Tensor]) -> State:
        """Map the sum."""
        return replace(state, variance=function(state.variance))
