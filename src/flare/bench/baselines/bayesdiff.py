"""BayesDiff: the total variance of the state, with a Monte-Carlo covariance of state and prediction.

With x' = a·x + b·ε + c·z the state has a mean E, a variance V and a covariance C with the prediction. On
every k-th step, the prediction that drives the sample is drawn from N(μ, γ²), γ² = diag(J Σ Jᵀ), and

    x_i ~ N(E, max(V, 0)), ε_i = f(x_i),  i = 1..S       C = mean(x_i·ε_i) − E·mean(ε_i)
    E' = a·E + b·mean(ε_i)                               V' = a²·V + 2ab·C + b²·γ² + c²

and between those steps E' = a·E + b·ε, V' = a²·V. Without C and c² only the epistemic part is left.

This is the recursion of the paper. The released code (github.com/karrykkk/BayesDiff) agrees with it for DDIM.
Its script for DDPM, `ddpm_skipUQ.py`, differs in three places: V is multiplied by a = 1/√(1−β) instead of a²,
β is added on every step, and E stays at x_T, because the function that moves E takes β between a level and
itself, which is 0:

    V' = a·V + 2ab·C + b²·γ² + β  on every k-th step     V' = a·V + β  between     E' = E
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ...autodiff.jvp import Push
from ...core import DIRECTIONS
from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import one_of, require_positive_int
from ...diffusion.noising import Pairs
from ...diffusion.samplers import Step, Steps
from ...network.denoiser import Denoiser
from ...posteriors import Posterior, diagonal
from ...posteriors.subsets import Subset, last_layer
from ...propagation import Ingredients, Rule
from ...results.result import Result, Spread
from ...sampling.sample import sample
from .contract import BASELINES, Baseline

Variant = Literal["paper", "released"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


class Moments(NamedTuple):
    """E and V, (B, *shape); the number of steps taken; the noise for the drawn states; the conditions."""

    mean: Tensor
    variance: Tensor
    done: int
    noise: NoiseSource
    cond: Cond


class BayesDiff(Rule):
    """The rule.

    Args:
        denoiser: The network; ε is whatever it predicts.
        subset: The uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        steps: The number of steps of the sampler.
        draws: S, the number of states drawn for C; 0 for the epistemic variance, without C and the
            sampler's noise.
        every: k, the number of steps between two updates of V.
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
        draws: int,
        every: int,
        betas: Sequence[float] | None = None,
    ) -> None:
        self.denoiser, self.draws, self.every, self.betas = denoiser, draws, every, betas
        self.push = Push(denoiser, subset, directions)
        self.noise_calls = -(-steps // every) * (1 + draws)

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Moments:
        """E = x_T, V = 0."""
        if history > 1:
            raise ValueError(
                f"BayesDiff needs a one-step sampler; this one keeps {history} terms. Use DDPM or DDIM."
            )
        return Moments(x, torch.zeros_like(x), 0, noise.beside(2, self.noise_calls), cond)

    def step(
        self, state: Moments, row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, Moments]:
        """The drawn prediction (the plain one between updates), and E and V after the row."""
        a, b = row.linear
        if state.done % self.every:
            f = self.denoiser(x, t, state.cond)
            return f, self._advance(state, row, f)
        mu, df = self.push(x, None, t, state.cond)
        own = df.square().sum(0)  # γ²
        f = mu + own.sqrt() * state.noise.next().to(x)
        if not self.draws:
            return f, self._advance(state, row, f, b**2 * own)
        state = state._replace(variance=state.variance.clamp(min=0))
        mean_f, covariance = self._estimate_covariance(state, t)
        added = 2 * a * b * covariance + b**2 * own
        if self.betas is None:
            added += (row.c if row.noise is None else row.c * row.noise(x, t, state.cond)) ** 2
        return f, self._advance(state, row, mean_f, added)

    def _estimate_covariance(self, state: Moments, t: Tensor) -> tuple[Tensor, Tensor]:
        """mean(ε_i) and C, from states drawn from N(E, V)."""
        mean_f, product = torch.zeros_like(state.mean), torch.zeros_like(state.mean)
        count = self.draws
        for _ in range(count):
            drawn = state.mean + state.variance.sqrt() * state.noise.next().to(state.mean)
            predicted = self.denoiser(drawn, t, state.cond)
            mean_f += predicted / count
            product += drawn * predicted / count
        return mean_f, product - state.mean * mean_f

    def _advance(self, state: Moments, row: Step, predicted: Tensor, added: Tensor | float = 0.0) -> Moments:
        """E and V after the row; `added` is what an update adds to V."""
        a, b = row.linear
        if self.betas is None:
            mean, variance = a * state.mean + b * predicted, a**2 * state.variance + added
        else:
            beta = self.betas[state.done] if self.draws else 0.0
            mean, variance = state.mean, a * state.variance + added + beta
        return state._replace(done=state.done + 1, mean=mean, variance=variance)

    def trace(self, state: Moments) -> Tensor:
        """Σ V."""
        return state.variance.flatten(1).sum(1)

    def finish(self, state: Moments, x: Tensor, noise: NoiseSource) -> Spread:
        """Return V; no directions are kept."""
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
    variant: Variant = "paper",
    directions: int | Literal["exact"] | Tensor = DIRECTIONS,
    **sampling: Any,
) -> Result:
    """Draw samples with their BayesDiff variance; the score is ΣV. The drawn predictions move the samples.

    >>> last_layer = flare.subsets.last_layer(denoiser)
    >>> fisher = flare.posteriors.diagonal(denoiser, last_layer, pairs, 1.0, 1.0, curvature="fisher")
    >>> bayesdiff = flare.bench.baselines.bayesdiff
    >>> bayesdiff(denoiser, steps, fisher, n=4, shape=(10,), draws=2).score.shape
    torch.Size([4])

    Args:
        denoiser: The network.
        steps: The table of a one-step sampler.
        posterior: The posterior over its parameters; `fit_fisher` fits the posterior of the publication.
        n: The number of samples.
        shape: The shape of one sample.
        draws: S, the number of states drawn for the covariance.
        every: The number of steps between two updates of the variance.
        total: Whether the variance is total, or epistemic only.
        variant: "paper", or "released" for the published scripts. For a sampler that adds no noise, the
            variants agree. The script for DDPM samples with `samplers.ddpm(schedule, variance="large")` and
            ends at the lowest level; here every step of the table counts, the one to data included. With
            total=False, β is left out together with C.
        directions: The number of posterior draws for γ², or "exact".
        **sampling: Keyword arguments of `flare.sample`, such as seed, cond and batch_size.
    """
    require_positive_int("draws", draws)
    require_positive_int("every", every)
    states = draws if total else 0
    has_noise = any(transition.c for transition in steps.transitions)
    betas = list_betas(steps) if one_of("variant", variant, VARIANTS) == "released" and has_noise else None

    class Configured(BayesDiff):
        """BayesDiff with these settings."""

        @classmethod
        def build(cls, given: Ingredients) -> Rule:
            parts = (given.denoiser, given.subset, given.directions)
            return cls(*parts, len(given.steps), states, every, betas)

    return sample(denoiser, steps, posterior, n, shape, rule=Configured, directions=directions, **sampling)


def list_betas(steps: Steps) -> list[float]:
    """β = 1 − (α/α')² of each step from α to α' = A·α + B + R, as a clean sample of 1 without noise moves."""
    alphas = [(row.level.alpha, row.A * row.level.alpha + row.B[0] + row.raw) for row in steps.transitions]
    return [1 - (here / there) ** 2 for here, there in alphas]


def fit_fisher(denoiser: Denoiser, pairs: Pairs) -> Posterior:
    """The posterior of the publication: the diagonal empirical Fisher of the last layer with δ = 1.

    Their H is a sum over the data: s is the size of the data, not 1.
    """
    return diagonal(denoiser, last_layer(denoiser), pairs, 1.0, float(pairs.samples), curvature="fisher")


BASELINES.register(
    Baseline(
        "bayesdiff",
        "total variance of the state, by a last-layer posterior and a Monte-Carlo covariance",
        bayesdiff,
        needs="posterior",
        fit=fit_fisher,
    )
)
