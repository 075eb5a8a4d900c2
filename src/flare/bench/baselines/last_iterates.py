"""Last iterates: the variance of the last predictions x̂0 along the trajectory. No posterior."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.progress import Progress, watch
from ...core.validation import require_positive_int
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...results.result import Result
from ...sampling.options import SampleOptions
from ...sampling.sample import trajectories
from .catalog import BASELINES, Baseline


def last_iterates(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    last: Sequence[int] = (10, 100),
    progress: Progress | bool | None = None,
    **options: Unpack[SampleOptions],
) -> Result:
    """Samples scored by Σ_i Var_j x̂0_i over the last j predictions: scores `last_10`, `last_100`.

    >>> list(flare.bench.baselines.last_iterates(denoiser, steps, n=4, shape=(10,), last=[3]).scores)
    ['last_3']

    Args:
        denoiser: the network.
        steps: a sampler's table.
        n: the number of samples.
        shape: of one sample.
        last: numbers of last predictions; each is capped at the number of steps.
        progress: as in `flare.sample`.
        **options: of `flare.sample`, such as seed, cond, start and batch_size.
    """
    if not last:
        raise ValueError("give at least one number of predictions, such as last=[10].")
    windows = {f"last_{count}": min(require_positive_int("last", count), len(steps)) for count in last}
    longest = max(windows.values())
    run = trajectories(denoiser, steps, None, n, shape, **options)
    batches: dict[str, list[Tensor]] = {name: [] for name in windows}
    predictions: list[Tensor] = []
    for frame in watch(iter(run), len(run), progress):
        if frame.index == 0:
            predictions = []  # a new batch, or a retry
        if frame.index >= frame.total - longest:
            predictions.append(frame.x0.clone())
        if frame.last:
            for name, count in windows.items():
                batches[name].append(torch.stack(predictions[-count:]).var(0, correction=0))
    variances = {name: torch.cat(parts) for name, parts in batches.items()}
    return Result(
        run.result.samples,
        next(iter(variances.values())),
        {name: variance.flatten(1).sum(1) for name, variance in variances.items()},
        about=run.result.about,
    )


BASELINES.register(
    Baseline(
        "last_iterates",
        "variance of the last predicted clean samples along the trajectory",
        run=lambda given: last_iterates(given.denoiser, given.steps, **given.sampling, **given.options),
        options=("last",),
    )
)
