"""Noise that belongs to a sample: one stream a sample index, whatever batch or process draws it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

BLOCK = 4096  # numbers drawn at once for one sample: few calls, little memory


class NoiseStreams:
    """Standard normal noise for the samples first..first+count−1 of a seed.

    The stream of a sample depends on the seed and its index alone. It is drawn in float32 on the
    CPU, in blocks of steps whose length follows from the shape alone: the same noise to the last bit
    for every batch size, number of processes, dtype and device.

    Args:
        seed: of the whole call.
        first: the index of the batch's first sample.
        count: the number of samples in the batch.
        shape: the shape of one sample.
    """

    def __init__(self, seed: int, first: int, count: int, shape: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(mix(seed, first + i)) for i in range(count)]
        self._block = torch.empty(count, max(1, BLOCK // max(1, prod(shape))), *shape)
        self._used = self._block.shape[1]

    def next(self) -> Tensor:
        """The next noise of every sample, (count, *shape) float32; a view, good until the next call."""
        if self._used == self._block.shape[1]:
            for stream, row in zip(self._streams, self._block, strict=True):
                row.normal_(generator=stream)
            self._used = 0
        self._used += 1
        return self._block[:, self._used - 1]


def mix(seed: int, index: int) -> int:
    """A 63-bit seed from the pair, by the finalizer of splitmix64: near pairs give unlike seeds."""
    z = 0
    for word in (seed, index):
        z = (z + word + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1
