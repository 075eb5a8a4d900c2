"""The denoising error of a sample at low and high noise levels; it needs no posterior."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import PROFILE_LEVELS, SHARED_REPEATS
from ..core.conditions import Cond
from ..core.noise_streams import SHARED_STREAM, mix_seed
from ..diffusion.parameterizations import target
from ..diffusion.schedules import Level
from ..network.denoiser import Denoiser, times
from .score import SCORES, Score


def error_profile(
    denoiser: Denoiser, x: Tensor, cond: Cond, levels: Sequence[Level], repeats: int, seed: int
) -> Tensor:
    """The mean over levels of log mean ‖f(x_t, t) − target‖², the inner mean over the noises of a level.

    The logarithm gives every level the same weight, whatever the size of its errors. All samples share the
    noise, so it does not add to their differences.

    Args:
        denoiser: The network.
        x: Finished samples, (B, *shape).
        cond: Their conditions.
        levels: The noise levels.
        repeats: Noise draws per level.
        seed: Random seed for the noise.
    """
    generator = torch.Generator().manual_seed(mix_seed(seed, SHARED_STREAM))
    # in float32 on the CPU for every dtype and device, so that a seed means the same noise
    noises = torch.randn(len(levels) * repeats, *x.shape[1:], generator=generator).to(x)
    repeated = [level for level in levels for _ in range(repeats)]
    errors = []
    for level, noise in zip(repeated, noises, strict=True):
        a, s = (torch.tensor(value, dtype=torch.float64).to(x) for value in (level.alpha, level.sigma))
        error = denoiser(a * x + s * noise, times(level.time, x), cond)
        error = error - target(denoiser.prediction, a, s, x, noise)
        errors.append(error.square().flatten(1).sum(1))
    by_level = torch.stack(errors, dim=1).unflatten(1, (len(levels), repeats)).mean(2)
    return by_level.clamp(min=torch.finfo(x.dtype).tiny).log().mean(1)


SCORES.register(
    Score(
        "error_profile",
        "how badly the sample is denoised at all noise levels, on a log scale; no posterior",
        of_existing=True,
        needs_posterior=False,
        compares_conditions=True,
        levels=PROFILE_LEVELS,
        repeats=SHARED_REPEATS,
    )
)
