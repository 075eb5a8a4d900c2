"""The denoising error of a sample at low and high noise levels; it needs no posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import PROFILE_LEVELS, SHARED_REPEATS
from ..core.conditions import Cond
from .renoising import Renoising
from .score import SCORES, Score


def error_profile(x: Tensor, cond: Cond, null: Cond | None, at: Renoising) -> Tensor:
    """The mean over levels of log mean ‖f(x_t, t) − target‖², the inner mean over the noises of a level.

    The logarithm gives every level the same weight, whatever the size of its errors. With null conditions,
    the profile under them is subtracted: the rest is low if the sample fits its condition better than the
    data at large.
    """
    profile = _profile(x, cond, at)
    return profile if null is None else profile - _profile(x, null, at)


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
