"""Oracles and small networks; nothing here is built from the code that it checks."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyNet(nn.Module):
    """A random smooth network for samples of any shape, with time features and a condition."""

    def __init__(self, shape: tuple[int, ...], width: int = 16, scale: float = 0.5) -> None:
        super().__init__()
        d = int(torch.Size(shape).numel())
        self.first = nn.Linear(d + 1, width)
        self.second = nn.Linear(width, d)
        with torch.no_grad():
            self.second.weight.mul_(scale)

    def forward(self, x: Tensor, t: Tensor, shift: Tensor | None = None) -> Tensor:
        time = (t.to(x.dtype) / 50).reshape(-1, 1)
        hidden = torch.tanh(self.first(torch.cat([x.flatten(1), time], dim=1)))
        if shift is not None:
            hidden = hidden + shift.reshape(-1, 1)
        return self.second(hidden).reshape(x.shape)


class GivenNoise:
    """Noise from a generator, one draw a call: how diffusers' schedulers consume theirs."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.shape, self.generator = shape, torch.Generator().manual_seed(seed)

    def next(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Equal up to `tolerance`, relative to the largest value."""
    scale = theirs.abs().max().clamp(min=1.0)
    error = ((ours - theirs).abs().max() / scale).item()
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"
