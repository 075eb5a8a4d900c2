"""The denoising error of a sample at low and high noise levels; it needs no posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..core.defaults import PROFILE_LEVELS, SHARED_REPEATS
from .base import SCORES, Score
from .renoising import Finished, Renoising


def error_profile(samples: Finished, at: Renoising) -> Tensor:
    """The mean over levels of log mean ‖f(x_t, t) − target‖², the inner mean over the noises of a level.

    A logarithm per level lets every level count the same, whatever the size of its errors. If the conditions
    that stand for none are given, the profile under these is subtracted: what is left is how much better the
    sample fits its condition than the data at large, with the opposite sign.
    """
    profile = _profile(samples.x, samples.cond, at)
    if samples.unconditional is None:
        return profile
    return profile - _profile(samples.x, samples.unconditional, at)


def _profile(x: Tensor, cond: Cond, at: Renoising) -> Tensor:
    noised = at.noise(x)
    errors = torch.stack(
        [
            (at.denoiser(noised.x[:, k], t.expand(len(x)), cond) - noised.target[:, k])
            .square()
            .flatten(1)
            .sum(1)
            for k, t in enumerate(noised.t)
        ],
        dim=1,
    )
    by_level = errors.unflatten(1, (len(at.levels), at.repeats)).mean(2)
    return by_level.clamp(min=torch.finfo(x.dtype).tiny).log().mean(1)


SCORES.register(
    Score(
        "error_profile",
        "how badly the sample is denoised at all noise levels, on a log scale; no posterior",
        of_samples=error_profile,
        of_existing=True,
        needs_posterior=False,
        compares_conditions=True,
        levels=PROFILE_LEVELS,
        repeats=SHARED_REPEATS,
    )
)
