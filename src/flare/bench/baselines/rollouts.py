"""LLLA, generative uncertainty and ensembles: several models, the same noise, the variance of their samples.

LLLA is a Laplace posterior over the last layer only; it works with any rule. Generative uncertainty (Jazbec
et al.) is the entropy of a Gaussian fitted to the samples of a few posterior draws; the original fits it to
features of the samples. A deep ensemble is the variance of the samples of independently trained models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ...core import DIRECTIONS
from ...core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ...core.validation import require_positive_int
from ...diffusion.noising import Pairs
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...posteriors import Posterior, dense, kronecker
from ...posteriors.subsets import last_layer
from ...posteriors.tuning import PriorPrecision, Scale
from ...results.result import Result
from ...sampling.sample import sample
from .contract import BASELINES, Baseline

DENSE_UP_TO = 2_000  # parameters of a last layer
FLOOR = 1e-3  # added to the variance of every feature


def llla(
    denoiser: Denoiser,
    pairs: Pairs,
    prior_precision: PriorPrecision = 1e-6,
    scale: Scale = 1.0,
    name: str | None = None,
    **fitting: Any,
) -> Posterior:
    """Fit a posterior over the last layer: dense up to 2,000 parameters, Kronecker-factored above.

    The Kronecker factors of a linear last layer are exact, up to the random probes.

    >>> posterior = flare.bench.baselines.llla(denoiser, pairs)
    >>> flare.sample(denoiser, steps, posterior, n=4, shape=(10,), rule="decoupled").score.shape
    torch.Size([4])

    Args:
        denoiser: The network.
        pairs: The training pairs.
        prior_precision: δ; the paper's value by default, or a method to choose it (see `posteriors.dense`).
        scale: s; the paper's value by default, or "calibrated".
        name: The name of the last layer, if it is not the one that was registered last.
        **fitting: Options of `posteriors.dense` and `posteriors.kronecker`, such as probes.
    """
    subset = last_layer(denoiser, name)
    fit = dense if subset.size <= DENSE_UP_TO else kronecker
    return fit(denoiser, subset, pairs, prior_precision, scale, **fitting)


def sample_llla(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    rule: str = "decoupled",
    directions: int | Literal["exact"] | Tensor = DIRECTIONS,
    derivative: str = "exact",
    **sampling: Any,
) -> Result:
    """Draw samples with the epistemic variance of a last-layer posterior, by default with the paper's
    recursion.

    >>> posterior = flare.bench.baselines.llla(denoiser, pairs)
    >>> flare.bench.baselines.sample_llla(denoiser, steps, posterior, n=4, shape=(10,)).score.shape
    torch.Size([4])

    Args:
        denoiser: The network.
        steps: The table of a sampler.
        posterior: The posterior over its last layer, from `llla`.
        n: The number of samples.
        shape: The shape of one sample.
        rule: How the posterior becomes variance, by name (`flare.propagation.RULES`).
        directions: The number of posterior draws, or "exact".
        derivative: The method of differentiation. Where the state does not move, as in the paper's recursion,
            exact derivatives pass only through the last layer.
        **sampling: Keyword arguments of `flare.sample`, such as seed, cond, start and batch_size.
    """
    return sample(
        denoiser, steps, posterior, n, shape, rule=rule, directions=directions, derivative=derivative,
        **sampling,
    )  # fmt: skip


def generative(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    models: int = 5,
    seed: int = 0,
    **sampling: Any,
) -> Result:
    """Draw samples of the trained model, scored by u = ½ Σ_i log(s_i² + 1e-3) + ½D·(log 2π + 1).

    s² is the variance of x_0 over the trained model and `models` posterior draws, all with
    the same start and the same noise. The method is meant for a last-layer posterior and DDIM.

    >>> generative = flare.bench.baselines.generative
    >>> generative(denoiser, steps, posterior, n=4, shape=(10,), models=2).score.shape
    torch.Size([4])

    Args:
        denoiser: The network.
        steps: The table of a sampler, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: The posterior over its parameters, such as `flare.bench.baselines.llla(...)`.
        n: The number of samples.
        shape: The shape of one sample.
        models: The number of posterior draws.
        seed: Random seed for the noise and the draws.
        **sampling: Keyword arguments of `flare.sample`, such as cond, start and batch_size.
    """
    posterior.check(denoiser)
    denoiser = denoiser.wide()  # in half precision, rounding would swallow the draws
    generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
    draws = posterior.draw(require_positive_int("models", models), generator)
    trained = posterior.subset.params(denoiser)
    changes = posterior.subset.scatter(draws.to(denoiser.device, denoiser.dtype))
    others = [
        denoiser.with_params({name: trained[name] + changes[name][k] for name in trained})
        for k in range(models)
    ]
    ends = roll_out([denoiser, *others], steps, seed, n=n, shape=shape, **sampling)
    flat = ends.flatten(2)  # (M + 1, n, D)
    D = flat.shape[2]
    entropy = 0.5 * (flat.var(0) + FLOOR).log().sum(1) + 0.5 * D * (math.log(2 * math.pi) + 1)
    return Result(ends[0], ends.var(0), {"generative": entropy})


def ensemble(
    denoisers: Sequence[Denoiser],
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    seed: int = 0,
    **sampling: Any,
) -> Result:
    """Draw samples of the first model, scored by Σ_i Var_m x_0,i over the M models.

    >>> other = flare.Denoiser(net)
    >>> flare.bench.baselines.ensemble([denoiser, other], steps, n=4, shape=(10,)).score.shape
    torch.Size([4])

    Args:
        denoisers: M ≥ 2 models; the samples of the first are returned.
        steps: The table of a sampler.
        n: The number of samples.
        shape: The shape of one sample.
        seed: Random seed for the noise.
        **sampling: Keyword arguments of `flare.sample`, such as cond, start and batch_size.
    """
    ends = roll_out(denoisers, steps, seed, n=n, shape=shape, **sampling)
    variance = ends.var(0)
    return Result(ends[0], variance, {"ensemble": variance.flatten(1).sum(1)})


def roll_out(
    models: Sequence[Denoiser], steps: Steps, seed: int | Sequence[int] = 0, **sampling: Any
) -> Tensor:
    """The samples of each of M ≥ 2 models, (M, n, *shape); `seed` is one for all models, or one per model."""
    if len(models) < 2:
        raise ValueError(f"a variance over models needs at least 2 models, got {len(models)}; pass more.")
    seeds = seed if isinstance(seed, Sequence) else [seed] * len(models)
    runs = zip(models, seeds, strict=True)
    return torch.stack([sample(model, steps, seed=own, **sampling).samples for model, own in runs])


BASELINES.register(
    Baseline(
        "llla",
        "epistemic variance by a last-layer posterior; the paper's recursion by default",
        sample_llla,
        needs="posterior",
        fit=llla,
    )
)
BASELINES.register(
    Baseline(
        "generative",
        "entropy of a Gaussian fitted to the samples of a few posterior draws",
        generative,
        needs="posterior",
        fit=lambda denoiser, pairs: llla(denoiser, pairs, "marglik", "calibrated"),
        trajectories=lambda models=5, **options: 1 + models,
    )
)
BASELINES.register(
    Baseline(
        "ensemble",
        "variance of the samples of several trained models, with the same noise",
        ensemble,
        needs="models",
    )
)
