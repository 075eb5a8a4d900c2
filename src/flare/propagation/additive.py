"""What the decoupled and the released rule share: they add up b²·diag(J Σ Jᵀ) over the steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.noise_streams import NoiseStreams
from ..diffusion.samplers import Step
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..results.spread import Spread


@dataclass(frozen=True)
class State:
    """The sum so far (B, *shape), Π a² of the steps so far, and the conditions."""

    variance: Tensor
    passed: float
    cond: Cond


class Additive(ABC):
    """A sum over the steps, with J the parameter Jacobian at the realized state.

    With a = A + (B+R)·p and b = −(B+R)·q of the row. No ∂f/∂x, no memory of where earlier steps moved the
    state, and nothing of clipping.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
    """

    name: ClassVar[str]
    draws = 0
    keeps_directions = False

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.push = Push(denoiser, subset, directions)

    @abstractmethod
    def add(self, state: State, a: float, own: Tensor) -> Tensor:
        """The sum after a step that itself has the variance `own` = b²·diag(J Σ Jᵀ)."""

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> State:
        """An empty sum."""
        if keep > 1:
            raise ValueError(
                f"{self.name} needs a one-step sampler; this one keeps {keep} terms. Use rule='tangent'."
            )
        return State(x.new_zeros(x.shape), 1.0, cond)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """f, and the sum after the row."""
        f, df = self.push(x, None, t, state.cond)
        a, b = row.linear
        variance = self.add(state, a, b**2 * df.square().sum(0))
        return f, State(variance, state.passed * a**2, state.cond)

    def trace(self, state: State) -> Tensor:
        """The trace of the sum so far."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseStreams) -> Spread:
        """The sum; no directions are kept."""
        return Spread(x, state.variance, None, None, state.cond)
