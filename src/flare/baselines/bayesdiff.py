"""BayesDiff: the total variance of the state, with a Monte-Carlo covariance of state and prediction.

With x' = a·x + b·ε + c·z the state has a mean E, a variance V and a covariance C with the prediction. On
every k-th step, the prediction that drives the sample is drawn from N(μ, γ²), γ² = diag(J Σ Jᵀ), and

    x_i ~ N(E, max(V, 0)), ε_i = f(x_i),  i = 1..S       C = mean(x_i·ε_i) − E·mean(ε_i)
    E' = a·E + b·mean(ε_i)                               V' = a²·V + 2ab·C + b²·γ² + c²

and between those steps E' = a·E + b·ε, V' = a²·V. Without C and c² only the epistemic part is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..autodiff.jvp import Push, prepare
from ..core.conditions import Cond
from ..core.defaults import DIRECTIONS
from ..core.noise_streams import NoiseStreams, mix_seed
from ..core.validation import require_positive_int
from ..diffusion.samplers import Step, Steps
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..posteriors import Posterior
from ..results.result import Result
from ..results.spread import Spread
from ..sampling.sample import sample


@dataclass(frozen=True)
class State:
    """E and V, (B, *shape); how many steps are done; the noise of the draws, and the conditions."""

    mean: Tensor
    variance: Tensor
    done: int
    noise: NoiseStreams
    cond: Cond


class BayesDiff:
    """The rule, for `flare.sample(..., rule=BayesDiff(...))`.

    Args:
        denoiser: the network; ε is whatever it predicts.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        steps: how many steps the sampler has.
        draws: S, the states drawn for C.
        every: k, the steps from one update of V to the next.
        total: whether the variance is total (with C and the sampler's own noise), or epistemic only.
    """

    draws = 0
    keeps_directions = False

    def __init__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        directions: Tensor,
        steps: int,
        draws: int = 10,
        every: int = 5,
        total: bool = True,
    ) -> None:
        self.denoiser, self.subset = denoiser, subset
        self.push = Push(denoiser, subset, directions)
        self.states = require_positive_int("draws", draws)
        self.every, self.total = require_positive_int("every", every), total
        self.noises = -(-steps // self.every) * (1 + (self.states if total else 0))

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> State:
        """E = x_T, V = 0."""
        if keep > 1:
            raise ValueError(
                f"BayesDiff needs a one-step sampler; this one keeps {keep} terms. Use DDPM or DDIM."
            )
        return State(x, torch.zeros_like(x), 0, noise.beside(2, self.noises), cond)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """The drawn prediction (the plain one between updates), and E and V after the row."""
        a, b = row.linear
        after = replace(state, done=state.done + 1)
        if state.done % self.every:
            f = self.denoiser(x, t, state.cond)
            return f, replace(after, mean=a * state.mean + b * f, variance=a**2 * state.variance)
        mu, df = self.push(x, None, t, state.cond)
        own = df.square().sum(0)  # γ²
        f = mu + own.sqrt() * state.noise.next().to(x)
        if not self.total:
            return f, replace(after, mean=a * state.mean + b * f, variance=a**2 * state.variance + b**2 * own)
        variance = state.variance.clamp(min=0)
        mean_f, product = torch.zeros_like(x), torch.zeros_like(x)
        for _ in range(self.states):
            drawn = state.mean + variance.sqrt() * state.noise.next().to(x)
            predicted = self.denoiser(drawn, t, state.cond)
            mean_f += predicted / self.states
            product += drawn * predicted / self.states
        covariance = product - state.mean * mean_f
        scale = row.c if row.noise is None else row.c * row.noise(x, t, state.cond)
        moved = a**2 * variance + 2 * a * b * covariance + b**2 * own + scale**2
        return f, replace(after, mean=a * state.mean + b * mean_f, variance=moved)

    def trace(self, state: State) -> Tensor:
        """Σ V."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseStreams) -> Spread:
        """V; no directions are kept."""
        return Spread(x, state.variance, None, None, state.cond)


def bayesdiff(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    draws: int = 10,
    every: int = 5,
    total: bool = True,
    directions: int = DIRECTIONS,
    derivative: str = "auto",
    cond: Cond | None = None,
    start: Tensor | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Samples with their BayesDiff variance; the score is ΣV. The drawn predictions move the samples.

    Args:
        denoiser: the network.
        steps: the table of a one-step sampler.
        posterior: over its parameters; theirs is diagonal on the last layer with the empirical Fisher:
            `posteriors.diagonal(denoiser, subsets.last_layer(denoiser), pairs, 1.0, N,
            curvature="fisher")`, with N the size of the data, since their H is a sum over it.
        n: how many samples.
        shape: of one sample.
        draws: S, the states drawn for the covariance.
        every: the steps from one update of the variance to the next.
        total: whether the variance is total, or epistemic only.
        directions: draws of the posterior for γ².
        derivative: how γ² is found; see `flare.sample`.
        cond: keyword arguments of the network; tensors have one row a sample.
        start: x_T, instead of n and shape.
        device: where to compute; by default where the network is.
        seed: of all the noise.
        **options: of `flare.sample`, such as first and batch_size.
    """
    D = posterior.directions(
        require_positive_int("directions", directions), torch.Generator().manual_seed(mix_seed(seed, -1))
    )
    posterior.check(denoiser, steps.schedule)
    if device is not None:
        denoiser = denoiser.to(device)
    probe = start if start is not None else torch.zeros(1, *(shape or ()))
    time = steps.rows(denoiser.prediction)[0].time
    wide = prepare(denoiser, posterior.subset, derivative, probe, time, cond)
    rule = BayesDiff(wide, posterior.subset, D, len(steps), draws, every, total)
    options |= {"cond": cond, "start": start, "derivative": wide.derivative}
    return sample(denoiser, steps, posterior, n, shape, rule=rule, seed=seed, **options)
