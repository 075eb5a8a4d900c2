"""Finished samples, noised again with noise that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.noise_streams import SHARED_STREAM, mix_seed
from ..diffusion.parameterizations import target
from ..diffusion.schedules import Level
from ..network.denoiser import Denoiser, times


class Noised(NamedTuple):
    """K noised copies of finished samples, K = levels × repeats, level by level.

    Attributes:
        x: x_t = α·x + σ·ε, (B, K, *shape).
        t: The times that the network receives, (K,).
        target: The targets of the network, (B, K, *shape).
    """

    x: Tensor
    t: Tensor
    target: Tensor


@dataclass(frozen=True)
class Renoising:
    """How finished samples are noised again.

    Attributes:
        denoiser: The network, in the precision that derivatives need.
        levels: The noise levels.
        repeats: Noise draws per level.
        seed: Random seed for the noise. All samples share the noise, so it does not add to their differences.
    """

    denoiser: Denoiser
    levels: Sequence[Level]
    repeats: int
    seed: int

    def noise(self, x: Tensor) -> Noised:
        """Noise the samples x (B, *shape) to all levels."""
        count, shape = len(self.levels) * self.repeats, x.shape[1:]
        generator = torch.Generator().manual_seed(mix_seed(self.seed, SHARED_STREAM))
        # in float32 on the CPU for every dtype and device, so that a seed means the same noise
        noise = torch.randn(count, *shape, generator=generator).to(x)
        repeated = [level for level in self.levels for _ in range(self.repeats)]
        a, s = (
            torch.tensor([getattr(level, name) for level in repeated], dtype=torch.float64)
            .to(x)
            .view(count, *[1] * len(shape))
            for name in ("alpha", "sigma")
        )
        clean = x.unsqueeze(1)
        y = target(self.denoiser.prediction, a, s, clean, noise).expand(len(x), count, *shape)
        t = torch.cat([times(level.time, x[:1]) for level in repeated])
        return Noised(a * clean + s * noise, t, y)
