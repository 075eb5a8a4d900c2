"""DDPM-OOD (Graham et al.): noise a sample to several levels, denoise it, compare the error with real data's.

    e_j(x) = mean over coordinates of (x − x̂_j)²          score = mean over j of (e_j − mean_j)/deviation_j

x̂_j is what the sampler makes of α_j·x + σ_j·ε, and the mean and the deviation of e_j are those of real data.
The original reconstructs with PLMS and averages the z-scores of the MSE and of LPIPS. Here DDIM takes a few
steps from each level, and LPIPS, which needs a network for images, is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.samplers import Clip, ddim
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from ...propagation.trajectory import Plain, walk
from .contract import Detector, Levels, Surprise, find_levels, register
from .feature_fits import fit_z_score

OOD_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # as fractions of T


@register
class DDPMOOD(Detector):
    """The mean z-score of the reconstruction errors from several levels.

    >>> method = flare.bench.baselines.DDPMOOD(denoiser, schedule, levels=(0.2, 0.5), calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The levels at which reconstructions start, as fractions of T.
        calls: Network calls per reconstruction, at most one per level of a discrete schedule.
        clip: The range of x̂0, as for `samplers.ddim`.
    """

    name = "ddpm_ood"
    summary = "errors of a sample noised to several levels and denoised, relative to those of real data"
    needed = 2  # for a standard deviation

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = OOD_LEVELS,
        calls: int = 10,
        clip: Clip = None,
    ) -> None:
        self.denoiser, self.device = denoiser, denoiser.device
        self.levels = find_levels(schedule, levels)
        fractions = [levels] if isinstance(levels, (int, float)) else levels
        require_positive_int("calls", calls)
        self.tables = [ddim(schedule, descend(schedule, each, calls), clip=clip) for each in fractions]
        self.draws = len(self.tables)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """The mean squared error of the reconstruction from each level."""
        errors = []
        for level, table in zip(self.levels, self.tables, strict=True):
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            rows = table.rows(self.denoiser.prediction)
            *_, last = walk(rows, Plain(self.denoiser), noised, noise, cond)
            errors.append((x - last.x).square().flatten(1).mean(1))
        return torch.stack(errors, 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Take the mean and the deviation of each error."""
        return fit_z_score(real)


def descend(schedule: Schedule, fraction: float, calls: int) -> list[float]:
    """At most `calls` evenly spaced indices t that fall from a fraction of T."""
    if schedule.continuous:
        return [fraction * schedule.T * ((calls - i) / calls) for i in range(calls)]
    top = max(1, round(fraction * schedule.T))
    return sorted({float(max(1, round(top * (calls - i) / calls))) for i in range(calls)}, reverse=True)
