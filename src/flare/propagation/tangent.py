"""The tangent rule: exact to first order in δθ, along the realized trajectory.

For each direction δθ of the posterior, with the noise held fixed,

    δx̂0 = p·δx + q·(∂f/∂x·δx + ∂f/∂θ·δθ), zero where x̂0 is clipped
    δx' = A·δx + Σ_j B[j]·δx̂0_{k−j} + R·(δx̂0 as if it were not clipped)

which includes the state's Jacobian and every cross term between steps. Variance: Σ_k δx_0².
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..autodiff.vjp import jacobian
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.steps import Step, Threshold
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..network.forward_mode import Derivative
from ..results.result import Spread
from .trajectory import RULES, Ingredients, Rule


class TangentState(NamedTuple):
    """δx (K, B, *shape), the last δx̂0s (newest first), the conditions, and how many δx̂0s to remember."""

    dx: Tensor
    predictions: tuple[Tensor, ...]
    cond: Cond
    history: int


@RULES.register
class Tangent(Rule):
    """One joint JVP in (x, θ) per direction and step, all directions in one batched pass.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
    """

    name = "tangent"
    summary = "exact to first order"
    calibrated_score = "expected_residual"
    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.directions = directions.to(denoiser.device, denoiser.dtype)
        self.push = Push(denoiser, subset, directions)

    @classmethod
    def build(cls, given: Ingredients) -> Rule:
        """Make the rule for a posterior: for all of Σ at once if the network has exact derivatives."""
        at_once = given.exact and given.denoiser.derivative is not Derivative.SECANT
        return (ExactTangent if at_once else Tangent)(given.denoiser, given.subset, given.directions)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> TangentState:
        """δx = 0: the start is the same for every model."""
        return TangentState(x.new_zeros(self.directions.shape[1], *x.shape), (), cond, history)

    def step(
        self, state: TangentState, row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, TangentState]:
        """Compute f, and δx after the row."""
        f, df = self.push(x, state.dx, t, state.cond)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: TangentState) -> Tensor | None:
        """Σ_k ‖δx_k‖²."""
        return torch.linalg.vector_norm(state.dx.flatten(2), dim=2).square().sum(0)

    def finish(self, state: TangentState, x: Tensor, noise: NoiseSource) -> Spread:
        """Σ_k δx_0²."""
        return Spread(x, state.dx.square().sum(0), state.dx, self.directions, state.cond)


class ExactTangent(Tangent):
    """The tangent rule for all directions at once: the sensitivity S = ∂x_t/∂θ_I, (d, m) per sample.

    It takes d reverse passes per sample and step, where `Tangent` takes one forward pass per direction: it is
    cheaper if d < m. Σ enters once, at the end: δx_0 = S D.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        directions: D (m, K) with Σ = D Dᵀ.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.denoiser, self.subset = denoiser, subset
        self.directions = directions.to(denoiser.device, denoiser.dtype)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> TangentState:
        """S = 0; the parameter axis comes first, as directions do."""
        return TangentState(x.new_zeros(self.subset.size, *x.shape), (), cond, history)

    def step(
        self, state: TangentState, row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, TangentState]:
        """Compute f, and S after the row."""
        f = self.denoiser(x, t, state.cond)
        by_theta, by_x = jacobian(self.denoiser, self.subset, x, t, state.cond)
        chained = torch.einsum("bij,mbj->mbi", by_x, state.dx.flatten(2))
        df = (chained + by_theta.permute(2, 0, 1)).view_as(state.dx)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: TangentState) -> None:
        """Unknown: a product with Σ would cost more than the step itself."""

    def finish(self, state: TangentState, x: Tensor, noise: NoiseSource) -> Spread:
        """δx_0 = S D."""
        dx = torch.tensordot(self.directions.T.to(state.dx), state.dx, dims=1)
        return super().finish(state._replace(dx=dx), x, noise)


def _advance(state: TangentState, row: Step, x: Tensor, f: Tensor, df: Tensor) -> TangentState:
    """Apply the row to the changes: the same affine map without its constant parts. Overwrites df."""
    clean = row.clean(x, f)
    if state.history == 1 and not isinstance(row.clip, Threshold):  # one pass over δx instead of three
        a, b = row.linear_at(clean)
        dx = df.mul_(b).addcmul_(state.dx, torch.as_tensor(a, dtype=df.dtype, device=df.device))
        return state._replace(dx=dx)
    raw = row.clean(state.dx, df)
    predictions = (row.limit_change(clean, raw), *state.predictions)[: state.history]
    return state._replace(dx=row.advance(state.dx, predictions, clean=raw), predictions=predictions)
