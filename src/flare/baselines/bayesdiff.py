"""BayesDiff: the total variance of the state, with a Monte-Carlo covariance of state and prediction.

With x' = a·x + b·ε + c·z the state has a mean E, a variance V and a covariance C with the prediction. On
every k-th step, the prediction that drives the sample is drawn from N(μ, γ²), γ² = diag(J Σ Jᵀ), and

    x_i ~ N(E, max(V, 0)), ε_i = f(x_i),  i = 1..S       C = mean(x_i·ε_i) − E·mean(ε_i)
    E' = a·E + b·mean(ε_i)                               V' = a²·V + 2ab·C + b²·γ² + c²

and between those steps E' = a·E + b·ε, V' = a²·V. Without C and c² only the epistemic part is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..autodiff.jvp import Push
from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..core.validation import require_positive_int
from ..diffusion.samplers import Step, Steps
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..posteriors import Posterior
from ..propagation import Rule, RuleSpec
from ..results.result import Result
from ..results.spread import Spread
from ..sampling.options import SampleOptions
from ..sampling.sample import sample


@dataclass(frozen=True)
class Settings:
    """How often the variance is updated, and from what.

    Attributes:
        draws: S, how many states are drawn for C.
        every: k, the steps from one update of V to the next.
        total: whether the variance is total (with C and the sampler's own noise), or epistemic only.
    """

    draws: int = 10
    every: int = 5
    total: bool = True

    def __post_init__(self) -> None:
        require_positive_int("draws", self.draws)
        require_positive_int("every", self.every)


@dataclass(frozen=True)
class State:
    """E and V, (B, *shape); how many steps are done; noise for the drawn states; the conditions."""

    mean: Tensor
    variance: Tensor
    done: int
    noise: NoiseSource
    cond: Cond


class BayesDiff(Rule):
    """The rule.

    Args:
        denoiser: the network; ε is whatever it predicts.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        steps: how many steps the sampler has.
        settings: how often the variance is updated, and from what.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset, directions: Tensor, steps: int, settings: Settings
    ) -> None:
        self.denoiser, self.settings = denoiser, settings
        self.push = Push(denoiser, subset, directions)
        updates = -(-steps // settings.every)
        self.noise_calls = updates * (1 + (settings.draws if settings.total else 0))

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> State:
        """E = x_T, V = 0."""
        if history > 1:
            raise ValueError(
                f"BayesDiff needs a one-step sampler; this one keeps {history} terms. Use DDPM or DDIM."
            )
        return State(x, torch.zeros_like(x), 0, noise.beside(2, self.noise_calls), cond)

    def step(self, state: State, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """The drawn prediction (the plain one between updates), and E and V after the row."""
        a, b = row.linear
        after = replace(state, done=state.done + 1)
        if state.done % self.settings.every:
            f = self.denoiser(x, t, state.cond)
            return f, replace(after, mean=a * state.mean + b * f, variance=a**2 * state.variance)
        mu, df = self.push(x, None, t, state.cond)
        own = df.square().sum(0)  # γ²
        f = mu + own.sqrt() * state.noise.next().to(x)
        if not self.settings.total:
            return f, replace(after, mean=a * state.mean + b * f, variance=a**2 * state.variance + b**2 * own)
        variance = state.variance.clamp(min=0)
        mean_f, product = torch.zeros_like(x), torch.zeros_like(x)
        count = self.settings.draws
        for _ in range(count):
            drawn = state.mean + variance.sqrt() * state.noise.next().to(x)
            predicted = self.denoiser(drawn, t, state.cond)
            mean_f += predicted / count
            product += drawn * predicted / count
        covariance = product - state.mean * mean_f
        scale = row.c if row.noise is None else row.c * row.noise(x, t, state.cond)
        total = a**2 * variance + 2 * a * b * covariance + b**2 * own + scale**2
        return f, replace(after, mean=a * state.mean + b * mean_f, variance=total)

    def trace(self, state: State) -> Tensor:
        """Σ V."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: State, x: Tensor, noise: NoiseSource) -> Spread:
        """Return V; no directions are kept."""
        return Spread(x, state.variance, None, None, state.cond)

    def map_state(self, state: State, function: Callable[[Tensor], Tensor]) -> State:
        """Map E and V."""
        return replace(state, mean=function(state.mean), variance=function(state.variance))


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
    **options: Unpack[SampleOptions],
) -> Result:
    """Draw samples with their BayesDiff variance; the score is ΣV. The drawn predictions move the samples.

    Args:
        denoiser: the network.
        steps: the table of a one-step sampler.
        posterior: over its parameters; theirs is diagonal on the last layer with the empirical Fisher:
            `posteriors.diagonal(denoiser, subsets.last_layer(denoiser), pairs, 1.0, N,
            curvature="fisher")`, with N the size of the data, since their H is a sum over it.
        n: how many samples.
        shape: of one sample.
        draws: S, how many states are drawn for the covariance.
        every: the steps from one update of the variance to the next.
        total: whether the variance is total, or epistemic only.
        **options: of `flare.sample`, such as directions (draws from the posterior for γ²), seed and cond.
    """
    settings = Settings(draws, every, total)
    rule = RuleSpec(
        "BayesDiff",
        "total variance with a Monte-Carlo covariance",
        build=lambda given: BayesDiff(
            given.denoiser, given.subset, given.directions, len(given.steps), settings
        ),
        drives_itself=True,
    )
    options["rule"] = rule
    return sample(denoiser, steps, posterior, n, shape, **options)
