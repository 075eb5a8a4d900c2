"""Sampling: batches of trajectories, put together into one result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checks import positive_int, samples
from .denoiser import Cond, Denoiser
from .progress import Progress, watched
from .samplers import Step, Steps
from .streams import NoiseStreams
from .trajectory import Frame, Plain, walk


@dataclass(frozen=True)
class Result:
    """What `flare.sample` returns.

    Attributes:
        samples: (n, *shape), in the network's dtype and on its device.
    """

    samples: Tensor

    def __len__(self) -> int:
        return len(self.samples)


def sample(
    denoiser: Denoiser,
    steps: Steps,
    posterior: None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    start: Tensor | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    batch_size: int = 1000,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Draw n samples.

    The noise of sample i depends on the seed and i alone: the same seed gives the same samples, to
    rounding, for every batch size.

    >>> model = flare.zoo.load("sines")                                       # doctest: +SKIP
    >>> flare.sample(model.denoiser, model.steps, n=500, shape=(10,)).samples # doctest: +SKIP

    Args:
        denoiser: the network.
        steps: a sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: None, for plain sampling.
        n: how many samples; with `start` it follows from it.
        shape: the shape of one sample, (d,), (C, L) or (C, H, W); with `start` it follows from it.
        start: x_T, (n, *shape), instead of noise from the seed.
        cond: keyword arguments of the network; tensors have one row a sample.
        seed: of all the noise.
        batch_size: how many samples go through the network at once.
        device: where to compute; by default where the network is.
        progress: wraps the frames (a `trajectory.Frame` a step and batch) and passes them on:
            `tqdm.tqdm`, or a function of yours that draws, or keeps the path.
    """
    n, shape = _size(n, shape, start)
    positive_int("batch_size", batch_size)
    cond = _conditions(cond, n)
    if device is not None:
        denoiser = denoiser.to(device)
    rows = steps.rows(denoiser.prediction)
    frames = _batches(denoiser, rows, n, shape, start, cond, seed, batch_size)
    total = len(rows) * -(-n // batch_size)
    last = [frame for frame in watched(frames, total, progress) if frame.last]
    return Result(samples=torch.cat([frame.x for frame in last]).to(denoiser.dtype))


def _batches(
    denoiser: Denoiser,
    rows: Sequence[Step],
    n: int,
    shape: tuple[int, ...],
    start: Tensor | None,
    cond: dict[str, Any],
    seed: int,
    batch_size: int,
) -> Iterator[Frame]:
    # A network of half precision is called in it, but the state is not rounded at every step.
    dtype = torch.promote_types(denoiser.dtype, torch.float32)
    rule = Plain(denoiser)
    draws = 1 + sum(row.c > 0 for row in rows)
    for first in range(0, n, batch_size):
        here = slice(first, min(first + batch_size, n))
        noise = NoiseStreams(seed, first, here.stop - first, shape, draws)
        x = noise.next()  # drawn even if unused, so that `start` leaves the noise of the steps alone
        if start is not None:
            x = start[here]
        x = x.to(denoiser.device, dtype)
        yield from walk(rows, rule, x, noise, _slice(cond, here, x.device), first)


def _size(n: int | None, shape: Sequence[int] | None, start: Tensor | None) -> tuple[int, tuple[int, ...]]:
    if start is not None:
        samples("start", start)
        if n not in (None, len(start)):
            raise ValueError(f"start has {len(start)} samples but n = {n}; leave n out.")
        if shape is not None and tuple(shape) != tuple(start.shape[1:]):
            raise ValueError(
                f"start has samples of shape {tuple(start.shape[1:])} but shape = {tuple(shape)}; "
                "leave shape out."
            )
        return len(start), tuple(start.shape[1:])
    if n is None or shape is None:
        raise ValueError("give n and shape, for instance n=1000, shape=(80,), or start=x_T.")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return positive_int("n", n), tuple(positive_int("each axis of shape", s) for s in shape)


def _conditions(cond: Cond | None, n: int) -> dict[str, Any]:
    if cond is None:
        return {}
    if not isinstance(cond, Mapping):
        raise TypeError(
            f"cond must be a dict of the network's keyword arguments, got {type(cond).__name__}; "
            "for instance cond={'class_labels': labels}."
        )
    for name, value in cond.items():
        if isinstance(value, Tensor) and value.ndim > 0 and len(value) != n:
            raise ValueError(
                f"cond[{name!r}] must have one row a sample, {n}, got shape {tuple(value.shape)}; "
                "expand it to the number of samples."
            )
    return dict(cond)


def _slice(cond: dict[str, Any], here: slice, device: torch.device) -> dict[str, Any]:
    return {
        name: (value[here] if value.ndim else value).to(device) if isinstance(value, Tensor) else value
        for name, value in cond.items()
    }
