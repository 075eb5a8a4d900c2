"""Last iterates: the variance of the last predictions x̂0 along the trajectory. Free, no posterior."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..propagation.trajectory import Frame
from ..results.result import Result
from ..sampling.sample import sample


def last_iterates(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    last: Sequence[int] = (10, 100),
    **options: Any,
) -> Result:
    """Samples scored by Σ_i Var_j x̂0_i over the last j predictions: scores `last_10`, `last_100`.

    Args:
        denoiser: the network.
        steps: a sampler's table.
        n: how many samples.
        shape: of one sample.
        last: how many of the last predictions; never more than there are steps.
        **options: of `flare.sample`, such as seed, cond, start and batch_size.
    """
    if not last:
        raise ValueError("give at least one number of predictions, such as last=[10].")
    windows = {f"last_{count}": min(require_positive_int("last", count), len(steps)) for count in last}
    found: dict[str, list[Tensor]] = {name: [] for name in windows}
    longest = max(windows.values())

    def watch(frames: Iterable[Frame]) -> Iterator[Frame]:
        kept: list[Tensor] = []
        for frame in frames:
            if frame.index == 0:
                kept.clear()  # the batch may have been begun again
            if frame.index >= frame.total - longest:
                kept.append(frame.x0.clone())
            if frame.last:
                for name, count in windows.items():
                    found[name].append(torch.stack(kept[-count:]).var(0, correction=0))
            yield frame

    result = sample(denoiser, steps, None, n, shape, progress=watch, **options)
    variances = {name: torch.cat(parts) for name, parts in found.items()}
    return Result(
        result.samples,
        next(iter(variances.values())),
        {name: variance.flatten(1).sum(1) for name, variance in variances.items()},
        about=result.about,
    )
