"""Aleatoric uncertainty (De Vita and Belagiannis): how much a step depends on the noise of its state.

At each step the predicted clean sample is noised again M times, and each copy makes the step:

    x̃_i = α·x̂0 + σ·ε_i        x'_i = A·x̃_i + B·x̂0(x̃_i),  i = 1..M
    score = Σ over coordinates of the mean over steps of Var_i x'_i

A large variance means that the model's step is sensitive there. The noise that a sampler adds is left out of
x'_i: its variance is the same for all samples. The original guides the sampler by this map; here it is only a
score, so the samples are those of `flare.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..core.conditions import Cond, take_rows, to_device
from ..core.noise_streams import COMPARED_STREAM, NoiseStreams, mix_seed
from ..core.progress import Progress, watch
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser, times
from ..propagation.trajectory import Frame, history_length
from ..results.result import Result
from ..sampling.options import SampleOptions
from ..sampling.sample import trajectories
from .registry import BASELINES, Baseline

DRAWS = 20


def aleatoric(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    draws: int = DRAWS,
    every: int = 1,
    progress: Progress | bool | None = None,
    **options: Unpack[SampleOptions],
) -> Result:
    """Samples scored by Σ_i of the mean over steps of Var x'_i: score `aleatoric`.

    Args:
        denoiser: the network.
        steps: the table of a one-step sampler.
        n: the number of samples.
        shape: of one sample.
        draws: M, noised copies per step, each with a network call; at least 2.
        every: the steps from one measurement of the variance to the next.
        progress: as in `flare.sample`.
        **options: of `flare.sample`, such as seed, cond, start and batch_size.
    """
    if require_positive_int("draws", draws) < 2:
        raise ValueError("draws must be at least 2: one draw has no variance.")
    require_positive_int("every", every)
    if (kept := history_length(steps.rows(denoiser.prediction))) > 1:
        raise ValueError(
            f"aleatoric needs a one-step sampler; {steps.name} keeps {kept} terms. Use samplers.ddim."
        )
    run = trajectories(denoiser, steps, None, n, shape, **options)
    measured = range(0, len(steps), every)
    parts: list[Tensor] = []
    batch: _Batch | None = None
    for frame in watch(iter(run), len(run), progress):
        if frame.index == 0:  # a new batch, or a retry
            batch = _Batch.of(frame, denoiser, steps, draws * len(measured), options)
        if batch is not None and frame.index in measured:
            batch.add(frame, draws)
        if batch is not None and frame.last:
            parts.append(batch.total / len(measured))
    variance = torch.cat(parts)
    result = run.result
    scores = {"aleatoric": variance.flatten(1).sum(1)}
    return Result(result.samples, variance, scores, about=result.about)


@dataclass
class _Batch:
    """The sum of the variances of one batch.

    Attributes:
        denoiser: the network, where the samples are.
        steps: the sampler's table.
        cond: the conditions of the batch.
        noise: of the copies.
        total: the variances of all steps so far, (B, *shape).
    """

    denoiser: Denoiser
    steps: Steps
    cond: Cond
    noise: NoiseStreams
    total: Tensor

    @classmethod
    def of(cls, frame: Frame, denoiser: Denoiser, steps: Steps, calls: int, options: SampleOptions) -> _Batch:
        """The batch of a frame."""
        start, count, device = frame.first - options.get("first", 0), len(frame.x), frame.x.device
        rows = slice(start, start + count)
        cond = to_device(take_rows(options.get("cond"), rows), device)
        seed = mix_seed(options.get("seed", 0), COMPARED_STREAM)
        noise = NoiseStreams(seed, frame.first, count, frame.x.shape[1:], calls)
        return cls(denoiser.to(device), steps, cond, noise, torch.zeros_like(frame.x))

    def add(self, frame: Frame, draws: int) -> None:
        """Add the variance of x' over noised copies of the predicted clean sample."""
        row, level = frame.step, self.steps.transitions[frame.index].level
        t = times(level.time, frame.x0)
        mean, squares = torch.zeros_like(frame.x0), torch.zeros_like(frame.x0)
        for count in range(1, draws + 1):  # Welford's running variance
            noised = level.alpha * frame.x0 + level.sigma * self.noise.next().to(frame.x0)
            clean = row.clean(noised, self.denoiser(noised, t, self.cond))
            change = row.advance(noised, [row.limit(clean)], clean=clean) - mean
            mean = mean + change / count
            squares = squares + change.square() * ((count - 1) / count)
        self.total = self.total + squares / (draws - 1)


BASELINES.register(
    Baseline(
        "aleatoric",
        "variance of a step over noised copies of the predicted clean sample",
        run=lambda given: aleatoric(given.denoiser, given.steps, **given.sampling, **given.options),
        options=("draws", "every"),
    )
)
