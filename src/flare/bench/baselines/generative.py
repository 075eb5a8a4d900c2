"""Generative uncertainty: the entropy of a Gaussian fitted to the features of a few models' samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.noise_streams import DIRECTIONS_STREAM, mix_seed
from ...core.validation import require_positive_int
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...posteriors import Posterior
from ...results.result import Result
from .catalog import BASELINES, Baseline
from .llla import llla
from .rollouts import roll_out

FLOOR = 1e-3  # added to the variance of every feature
MODELS = 5  # posterior draws


def generative(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    models: int = MODELS,
    features: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Samples of the trained model, scored by u = ½ Σ_i log(s_i² + 1e-3) + ½D·(log 2π + 1).

    s² is the variance of the features φ(x_0) over the trained model and `models` posterior draws, all with
    the same start and the same noise. The method is meant for a last-layer posterior and DDIM.

    >>> flare.bench.baselines.generative(denoiser, steps, posterior, n=4, shape=(10,), models=2).score.shape
    torch.Size([4])

    Args:
        denoiser: the network.
        steps: a sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: over its parameters, such as `flare.bench.baselines.llla(...)`.
        n: the number of samples.
        shape: of one sample.
        models: the number of posterior draws.
        features: φ, (n, *shape) -> (n, ...), such as an image encoder; by default the identity.
        seed: of the noise and of the draws.
        **options: passed to `flare.sample`, such as cond, start and batch_size.
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
    ends = roll_out([denoiser, *others], steps, seed, n=n, shape=shape, **options)
    with torch.no_grad():
        phi = ends if features is None else torch.stack([features(x) for x in ends])
    phi = phi.flatten(2)  # (M + 1, n, D)
    D = phi.shape[2]
    entropy = 0.5 * (phi.var(0) + FLOOR).log().sum(1) + 0.5 * D * (math.log(2 * math.pi) + 1)
    return Result(ends[0], ends.var(0), {"generative": entropy})


BASELINES.register(
    Baseline(
        "generative",
        "entropy of a Gaussian fitted to the samples of a few posterior draws",
        run=lambda given: generative(
            given.denoiser, given.steps, given.fitted, **given.sampling, **given.options
        ),
        needs="posterior",
        options=("models",),
        fit=lambda denoiser, pairs: llla(denoiser, pairs, "marglik", "calibrated"),
        count_trajectories=lambda given: 1 + given.options.get("models", MODELS),
    )
)
