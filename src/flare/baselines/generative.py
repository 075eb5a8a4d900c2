"""Generative uncertainty: the entropy of a Gaussian around the features of a few models' samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.noise_streams import mix_seed
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..results.result import Result
from .rollouts import rollouts

FLOOR = 1e-3  # added to the variance of every feature


def generative(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    models: int = 5,
    features: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """The trained model's samples, scored by u = ½ Σ_i log(s_i² + 1e-3) + ½D·(log 2π + 1).

    s² is the variance over the features φ(x_0) of `models` draws of the posterior and of the trained
    model, all from the same start with the same noise; meant for a last-layer posterior and DDIM.

    Args:
        denoiser: the network.
        steps: a sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: over its parameters, such as `flare.baselines.llla(...)`.
        n: how many samples.
        shape: of one sample.
        models: how many draws of the posterior.
        features: φ, (n, *shape) -> (n, ...), an encoder for images; by default the samples themselves.
        seed: of the noise and the draws.
        **options: of `flare.sample`, such as cond, start and batch_size.
    """
    posterior.check(denoiser)
    denoiser = denoiser.wide()  # draws would be lost in the rounding of half precision
    generator = torch.Generator().manual_seed(mix_seed(seed, -1))
    draws = posterior.draw(require_positive_int("models", models), generator)
    trained = posterior.subset.params(denoiser)
    moved = posterior.subset.scatter(draws.to(denoiser.device, denoiser.dtype))
    others = [
        denoiser.with_params({name: trained[name] + moved[name][k] for name in trained})
        for k in range(models)
    ]
    ends = rollouts([denoiser, *others], steps, n=n, shape=shape, seed=seed, **options)
    with torch.no_grad():
        seen = ends if features is None else torch.stack([features(x) for x in ends])
    seen = seen.flatten(2)  # (M + 1, n, D)
    D = seen.shape[2]
    entropy = 0.5 * (seen.var(0) + FLOOR).log().sum(1) + 0.5 * D * (math.log(2 * math.pi) + 1)
    return Result(ends[0], ends.var(0), {"generative": entropy})
