"""Aleatoric uncertainty (De Vita and Belagiannis): how much a step depends on the noise of its state.

At each step the predicted clean sample is noised again M times, and each copy makes the step:

    x̃_i = α·x̂0 + σ·ε_i        x'_i = A·x̃_i + B·x̂0(x̃_i)        ε̂_i = ε̂(x̃_i, t),  i = 1..M

    aleatoric = Σ over coordinates of the mean over steps of Var_i x'_i
    aleatoric_noise = the same of Var_i ε̂_i, the variance of the denoising scores that the publication has

The noise that a sampler adds is left out of x'_i: its variance is the same for all samples. High noise levels
dominate the mean over all steps, so a window of the last steps can be taken instead; the released code has a
window, too, and centers the variance at the prediction of the step itself. The publication guides the sampler
by this map; here it is only a score, so the samples are those of `flare.sample`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.conditions import Cond, take_rows, to_device
from ...core.noise_streams import COMPARED_STREAM, NoiseStreams, mix_seed
from ...core.progress import Progress, watch
from ...core.validation import require_positive_int
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser, times
from ...propagation.trajectory import Frame, history_length
from ...results.result import Result
from ...sampling.options import SampleOptions
from ...sampling.sample import trajectories
from .catalog import BASELINES, Baseline

DRAWS = 20
STEP, NOISE = "aleatoric", "aleatoric_noise"  # the scores; those of a window of 10 steps end in _10


def aleatoric(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    draws: int = DRAWS,
    last: Sequence[int] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[SampleOptions],
) -> Result:
    """Samples scored by the variance over noised copies: scores `aleatoric` and `aleatoric_noise`.

    With last=[10], the scores are `aleatoric_10` and `aleatoric_noise_10`.

    >>> steps = flare.samplers.ddpm(schedule, 5)
    >>> list(flare.bench.baselines.aleatoric(denoiser, steps, n=4, shape=(10,), draws=2).scores)
    ['aleatoric', 'aleatoric_noise']

    Args:
        denoiser: the network.
        steps: the table of a one-step sampler.
        n: the number of samples.
        shape: of one sample.
        draws: M, noised copies per step, each with a network call; at least 2.
        last: numbers of last steps to average over, each capped at the number of steps; None for all steps.
        progress: as in `flare.sample`.
        **options: of `flare.sample`, such as seed, cond, start and batch_size.
    """
    if require_positive_int("draws", draws) < 2:
        raise ValueError("draws must be at least 2: one draw has no variance.")
    if (kept := history_length(steps.rows(denoiser.prediction))) > 1:
        raise ValueError(
            f"aleatoric needs a one-step sampler; {steps.name} keeps {kept} terms. "
            "Use samplers.ddim(schedule)."
        )
    windows = _find_windows(steps, last)
    run = trajectories(denoiser, steps, None, n, shape, **options)
    done: list[_Batch] = []
    batch: _Batch | None = None
    for frame in watch(iter(run), len(run), progress):
        if batch is None or frame.index == 0:  # a new batch, or a retry
            batch = _Batch.of(frame, denoiser, steps, windows, draws, options)
        batch.add(frame)
        if frame.last:
            done.append(batch)
    variances = {name: torch.cat([each.totals[name] for each in done]) for name in done[0].totals}
    return Result(
        run.result.samples,
        next(iter(variances.values())),
        {name: variance.flatten(1).sum(1) for name, variance in variances.items()},
        about=run.result.about,
    )


def _find_windows(steps: Steps, last: Sequence[int] | None) -> dict[str, int]:
    """The number of last steps of each window, by what its scores end in."""
    if last is None:
        return {"": len(steps)}
    if not last:
        raise ValueError("give at least one number of steps, such as last=[10], or leave last out.")
    return {f"_{count}": min(require_positive_int("last", count), len(steps)) for count in last}


@dataclass(frozen=True)
class _Batch:
    """The variances of one batch.

    Attributes:
        denoiser: the network, where the samples are.
        steps: the sampler's table.
        windows: the number of last steps of each window.
        draws: copies per step.
        cond: the conditions of the batch.
        noise: of the copies.
        totals: the mean variances so far by the name of the score, (B, *shape).
    """

    denoiser: Denoiser
    steps: Steps
    windows: Mapping[str, int]
    draws: int
    cond: Cond
    noise: NoiseStreams
    totals: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        frame: Frame,
        denoiser: Denoiser,
        steps: Steps,
        windows: Mapping[str, int],
        draws: int,
        options: SampleOptions,
    ) -> _Batch:
        """The batch of a frame."""
        x, start = frame.x, frame.first - options.get("first", 0)
        cond = to_device(take_rows(options.get("cond"), slice(start, start + len(x))), x.device)
        seed = mix_seed(options.get("seed", 0), COMPARED_STREAM)
        noise = NoiseStreams(seed, frame.first, len(x), x.shape[1:], draws * max(windows.values()))
        totals = {name + end: torch.zeros_like(x) for name in (STEP, NOISE) for end in windows}
        return cls(denoiser.to(x.device), steps, windows, draws, cond, noise, totals)

    def add(self, frame: Frame) -> None:
        """Add the variances of a step to the windows that it belongs to."""
        ends = {end: count for end, count in self.windows.items() if frame.index >= frame.total - count}
        if not ends:
            return
        step, noise = self._measure(frame)
        for end, count in ends.items():
            self.totals[STEP + end] += step / count
            self.totals[NOISE + end] += noise / count

    def _measure(self, frame: Frame) -> tuple[Tensor, Tensor]:
        """The variances of x' and of ε̂ over noised copies of the predicted clean sample."""
        row, level = frame.step, self.steps.transitions[frame.index].level
        t = times(level.time, frame.x0)
        mean, squares = frame.x0.new_zeros(2, *frame.x0.shape), frame.x0.new_zeros(2, *frame.x0.shape)
        for count in range(1, self.draws + 1):  # Welford's running variance
            noised = level.alpha * frame.x0 + level.sigma * self.noise.next().to(frame.x0)
            clean = row.clean(noised, self.denoiser(noised, t, self.cond))
            stepped = row.advance(noised, [row.limit(clean)], clean=clean)
            change = torch.stack([stepped, (noised - level.alpha * clean) / level.sigma]) - mean
            mean += change / count
            squares += change.square() * ((count - 1) / count)
        step, noise = squares / (self.draws - 1)
        return step, noise


BASELINES.register(
    Baseline(
        "aleatoric",
        "variance of a step over noised copies of the predicted clean sample",
        run=lambda given: aleatoric(given.denoiser, given.steps, **given.sampling, **given.options),
        options=("draws", "last"),
    )
)
