"""RODS: the sharpest change of the predicted noise near the trajectory.

    index = max over steps of ‖ε̂(x_t + h·n, t) − ε̂(x_t, t)‖/h,  n = ε̂/‖ε̂‖,  h = 0.1·σ_t

RODS (arXiv 2507.12201) marks steps at which the score field changes sharply nearby, and moves the sampler
away from them; here the largest change is the score, and the samples are those of `flare.sample`. The first
step is left out, since every sample starts from noise alike. The direction, the step and the maximum are
our reading of its description; the published index may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.conditions import Cond, take_rows, to_device
from ...core.progress import Progress, watch
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...results.result import Result
from ...sampling.sample import trajectories
from .contract import BASELINES, DIFFERENCE, Baseline, estimate_parts


def rods(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    cond: Cond | None = None,
    first: int = 0,
    progress: Progress | bool | None = None,
    **sampling: Any,
) -> Result:
    """Draw samples with the largest change of the predicted noise near their trajectory.

    >>> flare.bench.baselines.rods(denoiser, steps, n=4, shape=(10,)).score.shape
    torch.Size([4])

    Args:
        denoiser: The network.
        steps: The table of a sampler with at least 2 steps.
        n: The number of samples.
        shape: The shape of one sample.
        cond: Keyword arguments of the network; tensors have one row per sample.
        first: The index of the first sample.
        progress: As in `flare.sample`.
        **sampling: Keyword arguments of `flare.sample`, such as seed, start and batch_size.
    """
    if len(steps) < 2:
        raise ValueError(f"rods compares steps of a trajectory, got {len(steps)}; take at least 2.")
    run = trajectories(denoiser, steps, None, n, shape, cond=cond, first=first, **sampling)
    found: list[Tensor] = []
    x = torch.empty(0)
    for frame in watch(iter(run), len(run), progress):
        if frame.index == 0:  # a new batch, or a retry
            net, row = denoiser.to(frame.x.device), frame.first - first
            own = to_device(take_rows(cond, slice(row, row + len(frame.x))), frame.x.device)
            index = frame.x.new_zeros(len(frame.x))
        else:
            level = steps.transitions[frame.index].level
            with torch.no_grad():
                eps = estimate_parts(net, level, x, own)[1]
                size = eps.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
                way = eps / size.view(-1, *[1] * (x.ndim - 1))
                step = DIFFERENCE * level.sigma
                moved = estimate_parts(net, level, x + step * way, own)[1]
            index = torch.maximum(index, (moved - eps).flatten(1).norm(dim=1) / step)
        x = frame.x
        if frame.last:
            found.append(index)
    return Result(run.result.samples, scores={"rods": torch.cat(found)}, about=run.result.about)


BASELINES.register(Baseline("rods", "largest change of the predicted noise near the trajectory", rods))
