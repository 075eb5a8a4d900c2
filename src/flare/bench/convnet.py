"""The small UNet of the shipped image model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..diffusion.schedules import Schedule
from ..network.scorenet import TIME_WIDTH, standardized_log_snr

GROUPS = 4  # of the normalizations


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


class ConvNet(nn.Module):
    """A UNet with two resolutions whose time feature is the standardized log-SNR.

    Args:
        channels: The number of channels of an image.
        width: The number of channels at full resolution, a multiple of 4; twice as many at half resolution.
        schedule: The noise levels, for the log-SNR of each time; the network is called with t − 1 in 0..T−1.
    """

    feature: Tensor  # (T,)

    def __init__(self, channels: int, width: int, schedule: Schedule) -> None:
        super().__init__()
        self.inp = nn.Conv2d(channels, width, 3, padding=1)
        self.time = nn.Sequential(
            nn.Linear(1, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH), nn.SiLU()
        )
        self.fine = ConvBlock(width, width)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, padding=1)
        self.coarse = nn.ModuleList([ConvBlock(2 * width, 2 * width), ConvBlock(2 * width, 2 * width)])
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.merge = ConvBlock(2 * width, width)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.out = nn.Conv2d(width, channels, 3, padding=1)
        # not persistent: the schedule in the configuration determines it
        self.register_buffer("feature", standardized_log_snr(schedule), persistent=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, channels, H, W) with even H and W, t (B,) integers in 0..T−1 -> like x."""
        if t.stride(0) == 0:  # all rows share one time, as in sampling: compute its features once
            t = t[:1]
        time = self.time(self.feature[t].unsqueeze(-1))
        fine = self.fine(self.inp(x), time)
        h = self.down(fine)
        for block in self.coarse:
            h = block(h, time)
        h = self.up(h.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))
        return self.out(F.silu(self.norm(self.merge(torch.cat([h, fine], 1), time))))
