"""Last iterates: the variance of the last predictions x̂0 along the trajectory. No posterior."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        n: the number of samples.
        shape: of one sample.
        last: numbers of last predictions; each is capped at the number of steps.
        **options: passed to `flare.sample`, such as seed, cond, start and batch_size.
    """
    if not last:
        raise ValueError("give at least one number of predictions, such as last=[10].")
    windows = {f"last_{count}": min(require_positive_int("last", count), len(steps)) for count in last}
    recorder = _Recorder(windows)
    result = sample(denoiser, steps, None, n, shape, progress=recorder.watch, **options)
    variances = recorder.variances()
    return Result(
        result.samples,
        next(iter(variances.values())),
        {name: variance.flatten(1).sum(1) for name, variance in variances.items()},
        about=result.about,
    )


class _Recorder:
    """Watches the frames of all batches and computes the variance of the last predictions of each batch.

    Args:
        windows: the number of last predictions, by name.
    """

    def __init__(self, windows: Mapping[str, int]) -> None:
        self._windows, self._longest = windows, max(windows.values())
        self._batches: dict[str, list[Tensor]] = {name: [] for name in windows}
        self._predictions: list[Tensor] = []

    def watch(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Pass the frames through and record their predictions."""
        for frame in frames:
            if frame.index == 0:
                self._predictions.clear()  # a new batch, or a retry
            if frame.index >= frame.total - self._longest:
                self._predictions.append(frame.x0.clone())
            if frame.last:
                for name, count in self._windows.items():
                    last = torch.stack(self._predictions[-count:])
                    self._batches[name].append(last.var(0, correction=0))
            yield frame

    def variances(self) -> dict[str, Tensor]:
        """The variance of every sample by window, (n, *shape)."""
        return {name: torch.cat(parts) for name, parts in self._batches.items()}
