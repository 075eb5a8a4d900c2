"""The networks of the shipped models: the FiLM-residual MLP of the paper, and a small UNet for images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..diffusion.schedules import Schedule

TIME_WIDTH = 32
GROUPS = 4  # of the normalizations of the UNet


class TimedNet(nn.Module):
    """A network whose time feature is the standardized log-SNR of each level."""

    feature: Tensor  # (T,)

    def add_time(self, schedule: Schedule) -> None:
        """Add the layers that embed the time; the place of the call decides their seeded weights."""
        self.time = nn.Sequential(
            nn.Linear(1, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH), nn.SiLU()
        )
        log_snr = schedule.log_snr
        # not persistent: the schedule in the configuration determines it
        self.register_buffer(
            "feature", ((log_snr - log_snr.mean()) / log_snr.std()).float(), persistent=False
        )

    def embed(self, t: Tensor) -> Tensor:
        """The features of times t (B,), integers in 0..T−1: (B, TIME_WIDTH), or one row if all are equal."""
        if t.stride(0) == 0:  # all rows share one time, as in sampling: compute its features once
            t = t[:1]
        return self.time(self.feature[t].unsqueeze(-1))


class FiLMBlock(nn.Module):
    """x + SiLU((1 + scale)·Linear(LayerNorm(x)) + shift), scale and shift linear in the time features.

    Args:
        width: The width of x.
        released: Scale and shift after the SiLU, as in the authors' code.
    """

    def __init__(self, width: int, released: bool = False) -> None:
        super().__init__()
        self.released = released
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.film = nn.Linear(TIME_WIDTH, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x (B, width), time (B, TIME_WIDTH) -> (B, width)."""
        scale, shift = self.film(time).chunk(2, dim=-1)
        y = self.linear(self.norm(x))
        if self.released:
            return x + torch.addcmul(shift, 1 + scale, F.silu(y))
        return x + F.silu(torch.addcmul(shift, 1 + scale, y))


class ScoreNet(TimedNet):
    """An MLP of FiLM blocks whose time feature is the standardized log-SNR.

    Args:
        dim: The number of coordinates of a sample, d.
        width: The width of the blocks, h.
        schedule: Gives the log-SNR of each time; the network is called with t − 1 in 0..T−1.
        n_blocks: The number of blocks. Without blocks the network ignores the time.
        released: As in the authors' code: FiLM after the SiLU, and a last layer that starts at zero.
    """

    def __init__(
        self, dim: int, width: int, schedule: Schedule, n_blocks: int = 2, released: bool = False
    ) -> None:
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.add_time(schedule)
        self.blocks = nn.ModuleList([FiLMBlock(width, released) for _ in range(n_blocks)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        if released:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, dim), t (B,) integers in 0..T−1 -> (B, dim)."""
        time = self.embed(t)
        x = self.inp(x)
        for block in self.blocks:
            x = block(x, time)
        return self.out(F.silu(self.norm(x)))


class ConvBlock(nn.Module):
    """x + two convolutions; scale and shift after the first are linear in the time features."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, channels)
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.film = nn.Linear(TIME_WIDTH, 2 * width)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x (B, channels, H, W), time (B, TIME_WIDTH) -> (B, width, H, W)."""
        scale, shift = self.film(time)[..., None, None].chunk(2, dim=1)
        h = self.second_norm(self.first(F.silu(self.first_norm(x))))
        return self.skip(x) + self.second(F.silu(torch.addcmul(shift, 1 + scale, h)))


class ConvNet(TimedNet):
    """A UNet with two resolutions whose time feature is the standardized log-SNR.

    Args:
        channels: The number of channels of an image.
        width: The number of channels at full resolution, a multiple of 4; twice as many at half resolution.
        schedule: The noise levels, for the log-SNR of each time; the network is called with t − 1 in 0..T−1.
    """

    def __init__(self, channels: int, width: int, schedule: Schedule) -> None:
        super().__init__()
        self.inp = nn.Conv2d(channels, width, 3, padding=1)
        self.add_time(schedule)
        self.fine = ConvBlock(width, width)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, padding=1)
        self.coarse = nn.ModuleList([ConvBlock(2 * width, 2 * width), ConvBlock(2 * width, 2 * width)])
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.merge = ConvBlock(2 * width, width)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, channels, H, W) with even H and W, t (B,) integers in 0..T−1 -> like x."""
        time = self.embed(t)
        fine = self.fine(self.inp(x), time)
        h = self.down(fine)
        for block in self.coarse:
            h = block(h, time)
        h = self.up(h.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))
        return self.out(F.silu(self.norm(self.merge(torch.cat([h, fine], 1), time))))
