"""Denoising error: re-noise a sample and measure how well the denoiser recovers it. No posterior."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import LEVELS
from ...core.conditions import Cond, check_conditions
from ...core.noise_streams import ERRORS_STREAM, NoiseStreams, mix_seed
from ...core.validation import require_positive_int, require_samples
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser
from ...results.result import Result
from .catalog import BASELINES, Baseline, Inputs
from .clean_estimate import estimate_clean


@torch.no_grad()
def denoising_error(
    denoiser: Denoiser,
    schedule: Schedule,
    x: Tensor,
    levels: Sequence[float] = LEVELS,
    repeats: int = 4,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
) -> Tensor:
    """The mean over levels and noises ε of the squared error in ε, ‖x − x̂0(α·x + σ·ε, t)‖²·α²/σ², (n,).

    For a network that predicts ε this is ‖ε − f‖², its training loss.

    >>> flare.bench.baselines.denoising_error(denoiser, schedule, result.samples).shape
    torch.Size([20])

    Args:
        denoiser: the network.
        schedule: the noise levels the network was trained on.
        x: finished samples or real data, (n, *shape).
        levels: as fractions of T.
        repeats: noise draws per level.
        cond: keyword arguments of the network.
        seed: of the noise.
        first: the index of the first sample, to score samples first..first+n−1 by themselves.
    """
    cond = check_conditions(cond, len(require_samples("x", x)))
    if not levels:
        raise ValueError("give at least one level, such as levels=[0.1].")
    require_positive_int("repeats", repeats)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    noise = NoiseStreams(mix_seed(seed, ERRORS_STREAM), first, len(x), x.shape[1:], len(levels) * repeats)
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for level in map(schedule.at_fraction, levels):
        for _ in range(repeats):
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            clean = estimate_clean(denoiser, level, noised, cond)
            total += (x - clean).square().flatten(1).sum(1) * (level.alpha / level.sigma) ** 2
    return total / (len(levels) * repeats)


def _run(given: Inputs) -> Result:
    noise = {name: given.sampling[name] for name in ("seed", "first")}
    values = denoising_error(given.denoiser, given.steps.schedule, given.existing, **noise, **given.options)
    return Result(given.existing, scores={"denoising_error": values})


BASELINES.register(
    Baseline(
        "denoising_error",
        "squared error of the denoiser on noised copies of a sample",
        run=_run,
        needs="samples",
        options=("levels", "repeats"),
        count_trajectories=lambda given: 0,
    )
)
