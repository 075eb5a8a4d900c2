"""The FiLM-residual MLP of the benchmark models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..diffusion.schedules import Schedule

TIME_WIDTH = 32


def standardized_log_snr(schedule: Schedule) -> Tensor:
    """The time feature of each level, (T,): its log-SNR, with mean 0 and standard deviation 1."""
    log_snr = schedule.log_snr
    return ((log_snr - log_snr.mean()) / log_snr.std()).float()


class FiLMBlock(nn.Module):
    """x + SiLU((1 + scale)·Linear(LayerNorm(x)) + shift), scale and shift linear in the time features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.film = nn.Linear(TIME_WIDTH, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x (B, width), time (B, TIME_WIDTH) -> (B, width)."""
        scale, shift = self.film(time).chunk(2, dim=-1)
        return x + F.silu(torch.addcmul(shift, 1 + scale, self.linear(self.norm(x))))


class ScoreNet(nn.Module):
    """An MLP of two FiLM blocks whose time feature is the standardized log-SNR.

    Args:
        dim: The number of coordinates of a sample, d.
        width: The width of the blocks, h.
        schedule: Gives the log-SNR of each time; the network is called with t − 1 in 0..T−1.
    """

    feature: Tensor  # (T,)

    def __init__(self, dim: int, width: int, schedule: Schedule) -> None:
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.time = nn.Sequential(
            nn.Linear(1, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH), nn.SiLU()
        )
        self.blocks = nn.ModuleList([FiLMBlock(width), FiLMBlock(width)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        # not persistent: the schedule in the configuration determines it
        self.register_buffer("feature", standardized_log_snr(schedule), persistent=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, dim), t (B,) integers in 0..T−1 -> (B, dim)."""
        if t.stride(0) == 0:  # all rows share one time, as in sampling: compute its features once
            t = t[:1]
        time = self.time(self.feature[t].unsqueeze(-1))
        x = self.inp(x)
        for block in self.blocks:
            x = block(x, time)
        return self.out(F.silu(self.norm(x)))
