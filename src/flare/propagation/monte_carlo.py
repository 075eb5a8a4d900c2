"""The Monte-Carlo rule: the definition. Other models, the same noise, the variance of where they end."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.func import vmap

from ..core.conditions import Cond
from ..core.noise_streams import NoiseStreams
from ..diffusion.samplers import Step
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..results.spread import Spread


@dataclass(frozen=True)
class State:
    """The states of the K other models (K, B, *shape), their last x̂0s, and the conditions."""

    x: Tensor
    predictions: tuple[Tensor, ...]
    cond: Cond
    keep: int


class MonteCarlo:
    """K models θ̂ + δθ_k, run through the same sampler beside the trained one.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: K ≥ 2 draws of N(0, Σ) divided by √K, (m, K).
    """

    draws = 0
    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.count = directions.shape[1]
        if self.count < 2:
            raise ValueError("monte_carlo needs at least 2 draws for a variance; give directions=2 or more.")
        self.denoiser = denoiser
        draws = directions.T.to(denoiser.device, denoiser.dtype) * self.count**0.5
        moved = subset.scatter(draws)
        self.params = {name: denoiser.params[name] + moved[name] for name in moved}
        # centred, as the deviations of the samples are
        self.directions = ((draws - draws.mean(0)) / (self.count - 1) ** 0.5).T

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> State:
        """All models start from the same x_T."""
        return State(x.expand(self.count, *x.shape), (), cond, keep)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """F of the trained model, and the row for all the others."""
        with self.denoiser.workarounds():
            f = vmap(lambda params, own: self.denoiser.call(params, own, t, state.cond))(self.params, state.x)
        clean = row.clean(state.x, f)
        x0 = row.limit(clean.flatten(0, 1)).view_as(clean)
        predictions = (x0, *state.predictions)[: state.keep]
        moved = row.advance(state.x, predictions, z, clean)
        return self.denoiser(x, t, state.cond), State(moved, predictions, state.cond, state.keep)

    def trace(self, state: State) -> Tensor:
        """The sum of the variances over the models."""
        return state.x.var(0).flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseStreams) -> Spread:
        """The variance over the models, and their deviations from the mean of them."""
        deviations = (state.x - state.x.mean(0)) / (self.count - 1) ** 0.5
        return Spread(x, state.x.var(0), deviations, self.directions, state.cond, models=state.x)
