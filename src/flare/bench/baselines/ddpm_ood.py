"""DDPM-OOD (Graham et al.): noise a sample to several levels, denoise it, compare the error with real data's.

    e_j(x) = mean over coordinates of (x − x̂_j)²          score = mean over j of (e_j − mean_j)/deviation_j

x̂_j is what the sampler makes of α_j·x + σ_j·ε, and the mean and the deviation of e_j are those of real data.
The original reconstructs with PLMS and averages the z-scores of the MSE and of LPIPS. Here DDIM takes a few
steps from each level, and LPIPS, which needs a network for images, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.samplers import Clip, Steps, ddim
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from ...propagation.trajectory import Plain, walk
from .catalog import Inputs, register_comparison
from .comparison import CompareOptions, Comparison
from .feature_fits import ZScore

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # as fractions of T
CALLS = 10  # network calls per level


@dataclass(frozen=True)
class Reconstructions:
    """The mean squared error of the reconstruction from each level, (B, L).

    Attributes:
        denoiser: the network.
        tables: a sampler's table from each level to data.
    """

    denoiser: Denoiser
    tables: Sequence[Steps]

    @property
    def draws(self) -> int:
        """One noise per level."""
        return len(self.tables)

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Noise and denoise once per level."""
        errors = []
        for table in self.tables:
            start = table.transitions[0].level
            noised = start.alpha * x + start.sigma * noise.next().to(x)
            rows = table.rows(self.denoiser.prediction)
            *_, last = walk(rows, Plain(self.denoiser), noised, noise, cond)
            errors.append((x - last.x).square().flatten(1).mean(1))
        return torch.stack(errors, 1)


def ddpm_ood(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    real: Tensor,
    levels: Sequence[float] = LEVELS,
    calls: int = CALLS,
    clip: Clip = None,
    **options: Unpack[CompareOptions],
) -> Tensor:
    """The mean z-score of the reconstruction errors from several levels, (n,).

    >>> flare.bench.baselines.ddpm_ood(denoiser, schedule, result.samples, data[:50], calls=4).shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples, (n, *shape).
        real: real data, (m, *shape), best held out from training.
        levels: where reconstructions start, as fractions of T.
        calls: network calls per reconstruction, at most one per level of a discrete schedule.
        clip: the range of x̂0, as for `samplers.ddim`.
        **options: cond, real_cond, seed, first and batch_size; see `Comparison.score`.
    """
    return make_ddpm_ood(denoiser, schedule, levels, calls, clip).score(x, real, **options)


def make_ddpm_ood(
    denoiser: Denoiser,
    schedule: Schedule,
    levels: Sequence[float] = LEVELS,
    calls: int = CALLS,
    clip: Clip = None,
) -> Comparison:
    """The method, to fit it once and score samples many times; see `ddpm_ood`.

    >>> method = flare.bench.baselines.make_ddpm_ood(denoiser, schedule, levels=(0.2, 0.5), calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])
    """
    if not levels:
        raise ValueError("give at least one level, such as levels=[0.1].")
    require_positive_int("calls", calls)
    tables = [ddim(schedule, descend(schedule, level, calls), clip=clip) for level in levels]
    return Comparison("ddpm_ood", Reconstructions(denoiser, tables), ZScore(), denoiser.device)


def descend(schedule: Schedule, fraction: float, calls: int) -> list[float]:
    """At most `calls` evenly spaced indices t that fall from a fraction of T."""
    schedule.at_fraction(fraction)  # refuses what is not a fraction
    if schedule.continuous:
        return [fraction * schedule.T * (calls - i) / calls for i in range(calls)]
    top = max(1, round(fraction * schedule.T))
    return sorted({float(max(1, round(top * (calls - i) / calls))) for i in range(calls)}, reverse=True)


def _compare(given: Inputs) -> Comparison:
    clip = given.steps.transitions[0].clip
    return make_ddpm_ood(given.denoiser, given.steps.schedule, clip=clip, **given.options)


register_comparison(
    "ddpm_ood",
    "errors of a sample noised to several levels and denoised, relative to those of real data",
    _compare,
    options=("levels", "calls"),
)
