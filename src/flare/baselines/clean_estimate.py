"""x̂0 at one noise level, for baselines that score existing samples."""

from __future__ import annotations

from torch import Tensor

from ..core.conditions import Cond
from ..diffusion.parameterizations import coefficients
from ..diffusion.schedules import Level
from ..network.denoiser import Denoiser, times


def estimate_clean(denoiser: Denoiser, level: Level, x: Tensor, cond: Cond) -> Tensor:
    """x̂0 = p·x + q·f(x, t) of states x at one level, (n, *shape)."""
    p, q = coefficients(denoiser.prediction, level.alpha, level.sigma)
    return p * x + q * denoiser(x, times(level.time, x), cond)
