"""Noise that belongs to a sample: one stream per sample index, whatever batch or process draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import Protocol

import torch
from torch import Tensor

# Streams of a seed other than those of its samples, whose indices are never negative: mix_seed(seed, tag).
DIRECTIONS_STREAM = -1  # draws from the posterior
EXISTING_STREAM = -2  # noise for samples that exist already; the drawn states of BayesDiff are beside(2)
ERRORS_STREAM = -3  # noise of the denoising error
SPLIT_STREAM = -4  # the rows of a held-out split
COMPARED_STREAM = -5  # noise of baselines for existing samples, such as DDPM-OOD
REAL_STREAM = -6  # the same for the real data that they compare with
SHARED_STREAM = -7  # noise that all finished samples share
BLOCK = 4096  # numbers drawn at once for one sample: few calls, little memory


class NoiseSource(Protocol):
    """Where the noise of a batch comes from."""

    def next(self) -> Tensor:
        """The next noise of every sample, (count, *shape) float32."""

    def beside(self, tag: int, calls: int) -> NoiseSource:
        """More noise for the same samples, independent of this stream and of all other tags."""


class NoiseStreams:
    """Standard normal noise for the samples first..first+count−1 of a seed.

    The stream of a sample depends only on the seed and its index. It is drawn in float32 on the
    CPU, in blocks whose size depends only on the shape. This gives the same noise to the last bit for every
    batch size, number of processes, dtype and device. While a block is used, a thread draws the next.

    Args:
        seed: Seed of the whole call.
        first: Index of the batch's first sample.
        count: Number of samples in the batch.
        shape: Shape of one sample.
        calls: Number of calls of `next`.
    """

    def __init__(self, seed: int, first: int, count: int, shape: Sequence[int], calls: int) -> None:
        self._origin, self._count, self._shape = (seed, first), count, tuple(shape)
        seeds = [mix_seed(seed, first + i) for i in range(count)]
        self._streams: Iterable[torch.Generator]
        if calls > 1:
            self._streams = [torch.Generator().manual_seed(own) for own in seeds]
        else:  # no stream is used again: one generator serves all of them in turn
            self._streams = map(torch.Generator().manual_seed, seeds)
        size = max(1, BLOCK // prod(self._shape))
        # x_T by itself: a sampler without noise draws nothing else
        self._sizes = iter([1] + [size] * -(-(calls - 1) // size))
        self._ready: Iterator[Tensor] = iter(())
        self._pool = ThreadPoolExecutor(1)
        self._drawing = self._prefetch()

    def next(self) -> Tensor:
        """The next noise of every sample, (count, *shape) float32."""
        noise = next(self._ready, None)
        if noise is not None:
            return noise
        if self._drawing is None:
            raise RuntimeError("more noise was requested than declared; raise the rule's `extra_noise`.")
        self._ready = iter(self._drawing.result().unbind(1))
        self._drawing = self._prefetch()
        return next(self._ready)

    def beside(self, tag: int, calls: int) -> NoiseStreams:
        """More streams for the same samples, independent of these and of all other tags."""
        seed, first = self._origin
        return NoiseStreams(mix_seed(seed, -tag), first, self._count, self._shape, calls)

    def _prefetch(self) -> Future[Tensor] | None:
        size = next(self._sizes, None)
        shape = (self._count, size or 0, *self._shape)
        return None if size is None else self._pool.submit(_draw, self._streams, shape)


class GivenNoise:
    """Noise that the caller supplies.

    Args:
        draw: Function that returns the next noise of every sample, (count, *shape).
    """

    def __init__(self, draw: Callable[[], Tensor]) -> None:
        self._draw = draw

    def next(self) -> Tensor:
        """The next noise of every sample."""
        return self._draw()

    def beside(self, tag: int, calls: int) -> NoiseSource:
        """Raise an error: the caller supplies only the noise of the steps."""
        raise ValueError("this rule draws its own noise, which noise= cannot supply; leave noise out.")


def _draw(streams: Iterable[torch.Generator], shape: Sequence[int]) -> Tensor:
    """Draw a block of noise, in a thread that has none of the caller's modes (inference, default device)."""
    block = torch.empty(*shape, dtype=torch.float32, device="cpu")
    for stream, row in zip(streams, block, strict=True):
        row.normal_(generator=stream)
    return block


def stream_bytes(shape: Sequence[int]) -> int:
    """The bytes that the streams of one sample take: a block in use and one being drawn."""
    return 2 * 4 * max(BLOCK, prod(shape))


def mix_seed(seed: int, index: int) -> int:
    """A 63-bit seed from the pair, by the finalizer of splitmix64: similar inputs give unrelated seeds."""
    z = 0
    for word in (seed, index):
        z = (z + word + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1
