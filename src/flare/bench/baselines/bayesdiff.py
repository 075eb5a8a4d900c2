"""BayesDiff: the total variance of the state, with a Monte-Carlo covariance of state and prediction.

With x' = a·x + b·ε + c·z the state has a mean E, a variance V and a covariance C with the prediction. On
every k-th step, the prediction that drives the sample is drawn from N(μ, γ²), γ² = diag(J Σ Jᵀ), and

    x_i ~ N(E, max(V, 0)), ε_i = f(x_i),  i = 1..S       C = mean(x_i·ε_i) − E·mean(ε_i)
    E' = a·E + b·mean(ε_i)                               V' = a²·V + 2ab·C + b²·γ² + c²

and between those steps E' = a·E + b·ε, V' = a²·V. Without C and c² only the epistemic part is left.

This is the recursion of the paper. The released code (github.com/karrykkk/BayesDiff) agrees with it for DDIM.
Its script for DDPM, `ddpm_skipUQ.py`, differs in three places: V is multiplied by a = 1/√(1−β) instead of a²,
β is added on every step, and E stays at x_T, since the function that moves E takes β between a level and
itself, which is 0:

    V' = a·V + 2ab·C + b²·γ² + β  on every k-th step     V' = a·V + β  between     E' = E
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...autodiff.jvp import Push
from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import one_of, require_positive_int
from ...diffusion.noising import Pairs
from ...diffusion.samplers import Step, Steps
from ...network.denoiser import Denoiser
from ...network.subsets import Subset, last_layer
from ...posteriors import Posterior, diagonal
from ...propagation import Ingredients, Rule
from ...results.result import Result
from ...results.spread import Spread
from ...sampling.options import SampleOptions
from ...sampling.sample import sample
from .catalog import BASELINES, Baseline

Variant = Literal["paper", "released"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


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
        betas: β of each step, for the released recursion of DDPM; None for the recursion of the paper.
    """

    name = "BayesDiff"
    summary = "total variance with a Monte-Carlo covariance"
    drives_itself = True

    def __init__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        directions: Tensor,
        steps: int,
        settings: Settings,
        betas: Sequence[float] | None = None,
    ) -> None:
        self.denoiser, self.settings, self.betas = denoiser, settings, betas
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
        if state.done % self.settings.every:
            f = self.denoiser(x, t, state.cond)
            return f, self._advance(state, row, f)
        mu, df = self.push(x, None, t, state.cond)
        own = df.square().sum(0)  # γ²
        f = mu + own.sqrt() * state.noise.next().to(x)
        if not self.settings.total:
            return f, self._advance(state, row, f, b**2 * own)
        state = replace(state, variance=state.variance.clamp(min=0))
        mean_f, covariance = self._estimate_covariance(state, t)
        added = 2 * a * b * covariance + b**2 * own
        if self.betas is None:
            added += (row.c if row.noise is None else row.c * row.noise(x, t, state.cond)) ** 2
        return f, self._advance(state, row, mean_f, added)

    def _estimate_covariance(self, state: State, t: Tensor) -> tuple[Tensor, Tensor]:
        """mean(ε_i) and C, from states drawn from N(E, V)."""
        mean_f, product = torch.zeros_like(state.mean), torch.zeros_like(state.mean)
        count = self.settings.draws
        for _ in range(count):
            drawn = state.mean + state.variance.sqrt() * state.noise.next().to(state.mean)
            predicted = self.denoiser(drawn, t, state.cond)
            mean_f += predicted / count
            product += drawn * predicted / count
        return mean_f, product - state.mean * mean_f

    def _advance(self, state: State, row: Step, predicted: Tensor, added: Tensor | float = 0.0) -> State:
        """E and V after the row; `added` is what an update adds to V."""
        a, b = row.linear
        if self.betas is None:
            mean, variance = a * state.mean + b * predicted, a**2 * state.variance + added
        else:
            beta = self.betas[state.done] if self.settings.total else 0.0
            mean, variance = state.mean, a * state.variance + added + beta
        return replace(state, done=state.done + 1, mean=mean, variance=variance)

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
    variant: Variant = "paper",
    **options: Unpack[SampleOptions],
) -> Result:
    """Draw samples with their BayesDiff variance; the score is ΣV. The drawn predictions move the samples.

    >>> last_layer = flare.subsets.last_layer(denoiser)
    >>> fisher = flare.posteriors.diagonal(denoiser, last_layer, pairs, 1.0, 1.0, curvature="fisher")
    >>> flare.bench.baselines.bayesdiff(denoiser, steps, fisher, n=4, shape=(10,), draws=2).score.shape
    torch.Size([4])

    Args:
        denoiser: the network.
        steps: the table of a one-step sampler.
        posterior: over its parameters; theirs is that of `fit`.
        n: how many samples.
        shape: of one sample.
        draws: S, how many states are drawn for the covariance.
        every: the steps from one update of the variance to the next.
        total: whether the variance is total, or epistemic only.
        variant: "paper", or "released" for the published scripts. Whether the sampler adds noise tells which
            of them applies: without noise, the variants agree. The script for DDPM samples with
            `samplers.ddpm(schedule, variance="large")` and ends at the lowest level; here every step of the
            table counts, the one to data included. With total=False, β is left out together with C.
        **options: of `flare.sample`, such as directions (draws from the posterior for γ²), seed and cond.
    """
    settings = Settings(draws, every, total)
    has_noise = any(transition.c for transition in steps.transitions)
    betas = list_betas(steps) if one_of("variant", variant, VARIANTS) == "released" and has_noise else None

    class Configured(BayesDiff):
        """BayesDiff with these settings."""

        @classmethod
        def build(cls, given: Ingredients) -> Rule:
            return cls(given.denoiser, given.subset, given.directions, len(given.steps), settings, betas)

    options["rule"] = Configured
    return sample(denoiser, steps, posterior, n, shape, **options)


def list_betas(steps: Steps) -> list[float]:
    """β = 1 − (α/α')² of each step from α to α' = A·α + B + R, as a clean sample of 1 without noise moves."""
    alphas = [(row.level.alpha, row.A * row.level.alpha + row.B[0] + row.raw) for row in steps.transitions]
    return [1 - (here / there) ** 2 for here, there in alphas]


def fit(denoiser: Denoiser, pairs: Pairs) -> Posterior:
    """The posterior of the publication: the diagonal empirical Fisher of the last layer with δ = 1.

    Their H is a sum over the data: s is the size of the data, not 1.
    """
    return diagonal(denoiser, last_layer(denoiser), pairs, 1.0, float(len(pairs.data)), curvature="fisher")


BASELINES.register(
    Baseline(
        "bayesdiff",
        "total variance of the state, by a last-layer posterior and a Monte-Carlo covariance",
        run=lambda given: bayesdiff(
            given.denoiser, given.steps, given.fitted, **given.sampling, **given.options
        ),
        needs="posterior",
        options=("variant", "draws", "every", "total", "directions"),
        fit=fit,
    )
)
