"""The tangent rule: exact to first order in δθ, along the realized trajectory.

For each direction δθ of the posterior, with the noise held fixed,

    δx̂0 = p·δx + q·(∂f/∂x·δx + ∂f/∂θ·δθ), zero where x̂0 is clipped
    δx' = A·δx + Σ_j B[j]·δx̂0_{k−j} + R·(δx̂0 as if it were not clipped)

so the state's Jacobian and every cross term between the steps are in it. Variance: Σ_k δx_0².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..autodiff.vjp import jacobian
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.clipping import Threshold
from ..diffusion.samplers import Step
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..network.forward_mode import Derivative
from ..results.spread import Spread
from .rules import RULES, Ingredients, RuleSpec
from .trajectory import Rule


@dataclass(frozen=True)
class State:
    """δx (K, B, *shape), the last δx̂0s (newest first), the conditions, and how many δx̂0s to remember."""

    dx: Tensor
    predictions: tuple[Tensor, ...]
    cond: Cond
    history: int

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """Apply a function to every tensor."""
        return replace(
            self, dx=function(self.dx), predictions=tuple(function(change) for change in self.predictions)
        )


class Tangent(Rule):
    """One joint JVP in (x, θ) per direction and step, all directions in one batched pass.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
    """

    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.directions = directions.to(denoiser.device, denoiser.dtype)
        self.push = Push(denoiser, subset, directions)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> State:
        """δx = 0: the start is the same for every model."""
        return State(x.new_zeros(self.directions.shape[1], *x.shape), (), cond, history)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """Compute f, and δx after the row."""
        f, df = self.push(x, state.dx, t, state.cond)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: State) -> Tensor:
        """Σ_k ‖δx_k‖²."""
        return torch.linalg.vector_norm(state.dx.flatten(2), dim=2).square().sum(0)

    def finish(self, state: State, x: Tensor, noise: NoiseSource) -> Spread:
        """Σ_k δx_0²."""
        return Spread(x, state.dx.square().sum(0), state.dx, self.directions, state.cond)

    def map_state(self, state: State, function: Callable[[Tensor], Tensor]) -> State:
        """Map δx and the δx̂0s."""
        return state.map(function)


class ExactTangent(Rule):
    """The tangent rule for all directions at once: the sensitivity S = ∂x_t/∂θ_I, (d, m) per sample.

    It takes d reverse passes per sample and step, where `Tangent` takes one forward pass per direction: it is
    cheaper if d < m. Σ enters once, at the end: δx_0 = S D.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ = D Dᵀ.
    """

    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.denoiser, self.subset = denoiser, subset
        self.directions = directions.to(denoiser.device, denoiser.dtype)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> State:
        """S = 0; the parameter axis comes first, as directions do."""
        return State(x.new_zeros(self.subset.size, *x.shape), (), cond, history)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """Compute f, and S after the row."""
        f = self.denoiser(x, t, state.cond)
        by_theta, by_x = jacobian(self.denoiser, self.subset, x, t, state.cond)
        chained = torch.einsum("bij,mbj->mbi", by_x, state.dx.flatten(2))
        df = (chained + by_theta.permute(2, 0, 1)).view_as(state.dx)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: State) -> None:
        """Unknown: a product with Σ would cost more than the step itself."""

    def finish(self, state: State, x: Tensor, noise: NoiseSource) -> Spread:
        """δx_0 = S D."""
        dx = torch.tensordot(self.directions.T.to(state.dx), state.dx, dims=1)
        return Spread(x, dx.square().sum(0), dx, self.directions, state.cond)

    def map_state(self, state: State, function: Callable[[Tensor], Tensor]) -> State:
        """Map S and the sensitivities of the last x̂0s."""
        return state.map(function)


def _advance(state: State, row: Step, x: Tensor, f: Tensor, df: Tensor) -> State:
    """Apply the row to the changes: the same affine map without its constant parts. Overwrites df."""
    clean = row.clean(x, f)
    if state.history == 1 and not isinstance(row.clip, Threshold):  # one pass over δx instead of three
        a, b = row.linear_at(clean)
        dx = df.mul_(b).addcmul_(state.dx, torch.as_tensor(a, dtype=df.dtype, device=df.device))
        return State(dx, (), state.cond, 1)
    raw = row.clean(state.dx, df)
    dx0 = row.limit_change(clean, raw)
    predictions = (dx0, *state.predictions)[: state.history]
    return State(row.advance(state.dx, predictions, clean=raw), predictions, state.cond, state.history)


def _build(given: Ingredients) -> Rule:
    """All of Σ at once where the network has exact derivatives; otherwise one direction after the other."""
    at_once = given.exact and given.denoiser.derivative is not Derivative.SECANT
    return (ExactTangent if at_once else Tangent)(given.denoiser, given.subset, given.directions)


RULES.register(
    RuleSpec("tangent", "exact to first order", build=_build, calibrated_score="expected_residual")
)
