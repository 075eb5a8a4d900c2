"""The tangent rule: exact to first order in δθ, along the realized trajectory.

For each direction δθ of the posterior, with the noise held fixed,

    δx̂0 = p·δx + q·(∂f/∂x·δx + ∂f/∂θ·δθ), zero where x̂0 is clipped
    δx' = A·δx + Σ_j B[j]·δx̂0_{k−j} + R·(δx̂0 as if it were not clipped)

so the state's Jacobian and every cross term between the steps are in it. Variance: Σ_k δx_0².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..autodiff.jvp import Push
from ..autodiff.vjp import jacobian
from ..core.conditions import Cond
from ..core.noise_streams import NoiseStreams
from ..diffusion.clipping import Threshold
from ..diffusion.samplers import Step
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..results.spread import Spread


@dataclass(frozen=True)
class State:
    """δx (K, B, *shape), the last δx̂0s (newest first), and the conditions."""

    dx: Tensor
    predictions: tuple[Tensor, ...]
    cond: Cond
    keep: int


class Tangent:
    """One joint JVP in (x, θ) a direction and step, all directions in one batched pass.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
    """

    draws = 0
    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.directions = directions.to(denoiser.device, denoiser.dtype)
        self.push = Push(denoiser, subset, directions)

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> State:
        """δx = 0: the start is the same for every model."""
        return State(x.new_zeros(self.directions.shape[1], *x.shape), (), cond, keep)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """f, and δx after the row."""
        f, df = self.push(x, state.dx, t, state.cond)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: State) -> Tensor:
        """Σ_k ‖δx_k‖²."""
        return torch.linalg.vector_norm(state.dx.flatten(2), dim=2).square().sum(0)

    def finish(self, state: State, x: Tensor, noise: NoiseStreams) -> Spread:
        """Σ_k δx_0²."""
        return Spread(x, state.dx.square().sum(0), state.dx, self.directions, state.cond)


class ExactTangent:
    """The tangent rule for all directions at once: the sensitivity S = ∂x_t/∂θ_I, (d, m) a sample.

    d reverse passes a sample and step instead of one forward pass a direction: cheaper where d < m.
    Σ enters once, at the end: δx_0 = S D.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ = D Dᵀ.
    """

    draws = 0
    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.denoiser, self.subset = denoiser, subset
        self.directions = directions.to(denoiser.device, denoiser.dtype)

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> State:
        """S = 0; the parameter axis comes first, as directions do."""
        return State(x.new_zeros(self.subset.size, *x.shape), (), cond, keep)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """f, and S after the row."""
        f = self.denoiser(x, t, state.cond)
        by_theta, by_x = jacobian(self.denoiser, self.subset, x, t, state.cond)
        chained = torch.einsum("bij,mbj->mbi", by_x, state.dx.flatten(2))
        df = (chained + by_theta.permute(2, 0, 1)).view_as(state.dx)
        return f, _advance(state, row, x, f, df)

    def trace(self, state: State) -> None:
        """Not told: a product with Σ a step would cost more than the step."""

    def finish(self, state: State, x: Tensor, noise: NoiseStreams) -> Spread:
        """δx_0 = S D."""
        dx = torch.tensordot(self.directions.T.to(state.dx), state.dx, dims=1)
        return Spread(x, dx.square().sum(0), dx, self.directions, state.cond)


def _advance(state: State, row: Step, x: Tensor, f: Tensor, df: Tensor) -> State:
    """The row, applied to the changes: the same affine map without its constant parts; df is used up."""
    clean = row.clean(x, f)
    if state.keep == 1 and not isinstance(row.clip, Threshold):  # one pass over δx instead of three
        a, b = row.linear_at(clean)
        dx = df.mul_(b).addcmul_(state.dx, torch.as_tensor(a, dtype=df.dtype, device=df.device))
        return State(dx, (), state.cond, 1)
    raw = row.clean(state.dx, df)
    dx0 = row.limit_change(clean, raw)
    predictions = (dx0, *state.predictions)[: state.keep]
    return State(row.advance(state.dx, predictions, clean=raw), predictions, state.cond, state.keep)
