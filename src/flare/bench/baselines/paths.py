"""Scores along the trajectory: last iterates, aleatoric uncertainty and RODS.

Last iterates (Aithal et al.) take the variance of the last predictions x̂0 along the trajectory.

Aleatoric uncertainty (De Vita and Belagiannis) asks how much a step depends on the noise of its state. At
each step the predicted clean sample is noised again M times, and each copy makes the step:

    x̃_i = α·x̂0 + σ·ε_i        x'_i = A·x̃_i + B·x̂0(x̃_i)        ε̂_i = ε̂(x̃_i, t),  i = 1..M

    aleatoric = Σ over coordinates of the mean over steps of Var_i x'_i
    aleatoric_noise = the same for Var_i ε̂_i, the variance of the denoising scores, as in the publication

The noise that a sampler adds is left out of x'_i: its variance is the same for all samples. High noise levels
dominate the mean over all steps, so a window of the last steps can be taken instead; the released code has a
window, too, and centers the variance at the prediction of the step itself. The publication guides the sampler
by this map; here it is only a score, so the samples are those of `flare.sample`.

RODS: the largest angle by which the predicted noise turns near the trajectory.

    index = max over steps of the angle between ε̂(x_t + 0.1·σ_t·n, t) and ε̂(x_t, t),  n = ε̂/‖ε̂‖

RODS (arXiv 2507.12201) marks steps at which the score field is sharply curved, and moves the sampler away
from them; here the largest angle is the score, and the samples are those of `flare.sample`. The first step is
left out, because every sample starts from noise. The direction, the step, the angle and the maximum are our
reading of its description; the published index may differ. The length of the change would be another reading,
but it is largest where the field is steepest, and that is next to good samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.conditions import Cond, take_rows, to_device
from ...core.noise_streams import COMPARED_STREAM, NoiseStreams, mix_seed
from ...core.progress import Progress, watch
from ...core.validation import require_positive_int
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser, times
from ...propagation.trajectory import Frame, history_length
from ...results.result import Result
from ...sampling.sample import trajectories
from .contract import BASELINES, Baseline, estimate_parts
from .derivatives import DIFFERENCE


def last_iterates(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    last: int | Sequence[int] = (10, 100),
    progress: Progress | bool | None = None,
    **sampling: Any,
) -> Result:
    """Draw samples with Σ_i Var_j x̂0_i over the last j predictions: scores `last_10` and `last_100`.

    >>> list(flare.bench.baselines.last_iterates(denoiser, steps, n=4, shape=(10,), last=3).scores)
    ['last_3']

    Args:
        denoiser: The network.
        steps: The table of a sampler.
        n: The number of samples.
        shape: The shape of one sample.
        last: How many of the last predictions to use, as a list: one score per entry. At most the number of
            steps.
        progress: As in `flare.sample`.
        **sampling: Keyword arguments of `flare.sample`, such as seed, cond, start and batch_size.
    """
    windows = _find_windows(steps, last)
    longest = max(windows.values())
    run = trajectories(denoiser, steps, None, n, shape, **sampling)
    found: list[dict[str, Tensor]] = []
    predictions: list[Tensor] = []
    for frame in watch(iter(run), len(run), progress):
        if frame.index == 0:  # a new batch, or a retry
            predictions = []
        if frame.index >= frame.total - longest:
            predictions.append(frame.x0.clone())
        if frame.last:
            found.append(
                {
                    f"last{end}": torch.stack(predictions[-count:]).var(0, correction=0)
                    for end, count in windows.items()
                }
            )
    return _collect(run.result, found)


def aleatoric(
    denoiser: Denoiser,
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    draws: int = 20,
    last: int | Sequence[int] | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    progress: Progress | bool | None = None,
    **sampling: Any,
) -> Result:
    """Draw samples with the variance over noised copies: scores `aleatoric` and `aleatoric_noise`.

    With last=10, the scores are `aleatoric_10` and `aleatoric_noise_10`.

    >>> steps = flare.samplers.ddpm(schedule, 5)
    >>> list(flare.bench.baselines.aleatoric(denoiser, steps, n=4, shape=(10,), draws=2).scores)
    ['aleatoric', 'aleatoric_noise']

    Args:
        denoiser: The network.
        steps: The table of a one-step sampler.
        n: The number of samples.
        shape: The shape of one sample.
        draws: M, noised copies per step, each with a network call; at least 2.
        last: Numbers of last steps to average over, each capped at the number of steps; None for all steps.
        cond: Keyword arguments of the network; tensors have one row per sample.
        seed: Random seed for the noise.
        first: The index of the first sample.
        progress: As in `flare.sample`.
        **sampling: Keyword arguments of `flare.sample`, such as start and batch_size.
    """
    if require_positive_int("draws", draws) < 2:
        raise ValueError("draws must be at least 2: one draw has no variance.")
    if (kept := history_length(steps.rows(denoiser.prediction))) > 1:
        raise ValueError(
            f"aleatoric needs a one-step sampler; {steps.name} keeps {kept} terms. "
            "Use samplers.ddim(schedule)."
        )
    windows = {"": len(steps)} if last is None else _find_windows(steps, last)

    names = [kind + end for kind in ("aleatoric", "aleatoric_noise") for end in windows]
    sampling |= {"cond": cond, "seed": seed, "first": first}
    run = trajectories(denoiser, steps, None, n, shape, **sampling)
    found: list[dict[str, Tensor]] = []
    for frame in watch(iter(run), len(run), progress):
        x = frame.x
        if frame.index == 0:  # a new batch, or a retry
            net, row = denoiser.to(x.device), frame.first - first
            own = to_device(take_rows(cond, slice(row, row + len(x))), x.device)
            calls = draws * max(windows.values())
            noise = NoiseStreams(mix_seed(seed, COMPARED_STREAM), frame.first, len(x), x.shape[1:], calls)
            totals = {end: x.new_zeros(2, *x.shape) for end in windows}
        ends = {end: count for end, count in windows.items() if frame.index >= frame.total - count}
        if ends:
            variances = _vary_noise(net, steps, frame, own, noise, draws)
            for end, count in ends.items():
                totals[end] += variances / count
        if frame.last:
            both = torch.stack(list(totals.values()), 1).flatten(0, 1)  # in the order of the names
            found.append(dict(zip(names, both, strict=True)))
    return _collect(run.result, found)


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
    """Draw samples with the largest angle by which the predicted noise turns near a trajectory, in radians.

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
                way = _unit(eps)
                moved = _unit(estimate_parts(net, level, x + DIFFERENCE * level.sigma * way, own)[1])
            angle = 2 * ((moved - way).flatten(1).norm(dim=1) / 2).clamp(max=1).asin()
            index = torch.maximum(index, angle)
        x = frame.x
        if frame.last:
            found.append(index)
    return Result(run.result.samples, scores={"rods": torch.cat(found)}, about=run.result.about)


def _unit(v: Tensor) -> Tensor:
    """The directions of v (B, *shape)."""
    return nn.functional.normalize(v.flatten(1)).view_as(v)


def _vary_noise(
    denoiser: Denoiser, steps: Steps, frame: Frame, cond: Cond, noise: NoiseStreams, draws: int
) -> Tensor:
    """The variances of x' and of ε̂ over noised copies of the predicted clean sample, (2, B, *shape)."""
    row, level = frame.step, steps.transitions[frame.index].level
    t = times(level.time, frame.x0)
    mean, squares = frame.x0.new_zeros(2, *frame.x0.shape), frame.x0.new_zeros(2, *frame.x0.shape)
    for count in range(1, draws + 1):  # Welford's running variance
        noised = level.alpha * frame.x0 + level.sigma * noise.next().to(frame.x0)
        clean = row.clean(noised, denoiser(noised, t, cond))
        stepped = row.advance(noised, [row.limit(clean)], clean=clean)
        change = torch.stack([stepped, (noised - level.alpha * clean) / level.sigma]) - mean
        mean += change / count
        squares += change.square() * ((count - 1) / count)
    return squares / (draws - 1)


def _find_windows(steps: Steps, last: int | Sequence[int]) -> dict[str, int]:
    """The number of last steps in each window, by the ending of its score."""
    counts = last if isinstance(last, Sequence) else [last]
    if not counts:
        raise ValueError("give at least one number of steps, such as last=[10].")
    return {f"_{count}": min(require_positive_int("last", count), len(steps)) for count in counts}


def _collect(drawn: Result, found: Sequence[Mapping[str, Tensor]]) -> Result:
    """The samples, scored by the sums of their variances; `found` has the variances of each batch by name."""
    variances = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    scores = {name: variance.flatten(1).sum(1) for name, variance in variances.items()}
    return Result(drawn.samples, next(iter(variances.values())), scores, about=drawn.about)


BASELINES.register(
    Baseline(
        "last_iterates", "variance of the last predicted clean samples along the trajectory", last_iterates
    )
)
BASELINES.register(
    Baseline("aleatoric", "variance of a step over noised copies of the predicted clean sample", aleatoric)
)
BASELINES.register(
    Baseline("rods", "largest angle by which the predicted noise turns near a trajectory", rods)
)
