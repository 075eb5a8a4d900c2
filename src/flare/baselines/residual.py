"""The residual: how far a sample is from what the denoiser makes of it. One call, no posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.conditions import Cond, check_conditions
from ..core.validation import require_samples
from ..diffusion.parameterizations import coefficients
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser, times


@torch.no_grad()
def residual(
    denoiser: Denoiser, schedule: Schedule, x: Tensor, level: float = 0.1, cond: Cond | None = None
) -> Tensor:
    """‖x − x̂0(α·x, t)‖² at one level, (n,).

    Args:
        denoiser: the network.
        schedule: the noise levels that it was trained on.
        x: finished samples or real data, (n, *shape).
        level: as a fraction of T.
        cond: keyword arguments of the network.
    """
    cond = check_conditions(cond, len(require_samples("x", x)))
    at = schedule.at_fraction(level)
    p, q = coefficients(denoiser.prediction, at.alpha, at.sigma)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    inner = at.alpha * x
    clean = p * inner + q * denoiser(inner, times(at.time, x), cond)
    return (x - clean).square().flatten(1).sum(1)
