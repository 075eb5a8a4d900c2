"""The Monte-Carlo rule: rerun models drawn from the posterior with the same noise.

The variance of their samples is the definition of epistemic variance, which the other rules approximate.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..diffusion.steps import Step
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..results.result import Spread
from .trajectory import RULES, Ingredients, Rule


class RerunState(NamedTuple):
    """The states of the K models (K, B, *shape), their last x̂0s, the conditions, and how many x̂0s to keep."""

    x: Tensor
    predictions: tuple[Tensor, ...]
    cond: Cond
    history: int


@RULES.register
class MonteCarlo(Rule):
    """K models θ̂ + δθ_k, run through the same sampler as the trained one.

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        directions: K ≥ 2 draws of N(0, Σ) divided by √K, (m, K).
    """

    name = "monte_carlo"
    summary = "the definition: rerun other models"
    needs_derivatives = False
    keeps_directions = True

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        self.count = directions.shape[1]
        if self.count < 2:
            raise ValueError("monte_carlo needs at least 2 draws for a variance; give directions=2 or more.")
        self.denoiser = denoiser
        draws = directions.T.to(denoiser.device, denoiser.dtype) * self.count**0.5
        changes = subset.scatter(draws)
        self.params = {name: denoiser.params[name] + change for name, change in changes.items()}
        # centered, as the deviations of the samples are
        self.directions = ((draws - draws.mean(0)) / (self.count - 1) ** 0.5).T

    @classmethod
    def build(cls, given: Ingredients) -> MonteCarlo:
        """Make the rule for a posterior, from draws of it."""
        if given.exact:
            raise ValueError("monte_carlo draws models; give a number of directions, such as 64.")
        return cls(given.denoiser, given.subset, given.directions)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> RerunState:
        """All models start from the same x_T."""
        return RerunState(x.expand(self.count, *x.shape), (), cond, history)

    def step(
        self, state: RerunState, row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, RerunState]:
        """Compute f of the trained model, and apply the row to all other models."""
        f = self._call_all(state.x, t, state.cond)
        clean = row.clean(state.x, f)
        x0 = row.limit(clean.flatten(0, 1)).view_as(clean)
        predictions = (x0, *state.predictions)[: state.history]
        after = row.advance(state.x, predictions, z, clean)
        return self.denoiser(x, t, state.cond), state._replace(x=after, predictions=predictions)

    def _call_all(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        """f of all models, in turn if recurrent layers, which have no batching rule, are among them."""
        models = range(self.count)
        if any(isinstance(layer, (nn.RNNBase, nn.RNNCellBase)) for layer in self.denoiser.module.modules()):
            params = [{name: value[k] for name, value in self.params.items()} for k in models]
            return torch.stack([self.denoiser.call(params[k], x[k], t, cond) for k in models])
        with self.denoiser.workarounds():
            return vmap(lambda params, own: self.denoiser.call(params, own, t, cond))(self.params, x)

    def trace(self, state: RerunState) -> Tensor:
        """The sum of the variances over the models."""
        return state.x.var(0).flatten(1).sum(1)

    def finish(self, state: RerunState, x: Tensor, noise: NoiseSource) -> Spread:
        """Compute the variance over the models, and their deviations from the mean."""
        deviations = (state.x - state.x.mean(0)) / (self.count - 1) ** 0.5
        return Spread(x, state.x.var(0), deviations, self.directions, state.cond, models=state.x)
