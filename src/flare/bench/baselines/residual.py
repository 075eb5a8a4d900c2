"""Residual: the distance between a sample and its denoised version. One network call, no posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.conditions import Cond, check_conditions
from ...core.validation import require_samples
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from ...results.result import Result
from .catalog import BASELINES, Baseline, Inputs
from .clean_estimate import estimate_clean


@torch.no_grad()
def residual(
    denoiser: Denoiser, schedule: Schedule, x: Tensor, level: float = 0.1, cond: Cond | None = None
) -> Tensor:
    """‖x − x̂0(α·x, t)‖² at one level, (n,).

    >>> flare.bench.baselines.residual(denoiser, schedule, result.samples).shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples or real data, (n, *shape).
        level: the noise level, as a fraction of T.
        cond: keyword arguments of the network.
    """
    cond = check_conditions(cond, len(require_samples("x", x)))
    at = schedule.at_fraction(level)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    clean = estimate_clean(denoiser, at, at.alpha * x, cond)
    return (x - clean).square().flatten(1).sum(1)


def _run(given: Inputs) -> Result:
    values = residual(given.denoiser, given.steps.schedule, given.existing, **given.options)
    return Result(given.existing, scores={"residual": values})


BASELINES.register(
    Baseline(
        "residual",
        "distance between a sample and its denoised version",
        run=_run,
        needs="samples",
        options=("level",),
        count_trajectories=lambda given: 0,
    )
)
