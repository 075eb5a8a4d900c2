"""A UNet with attention for images: three resolutions, the parameters and names of diffusers' `UNet2DModel`.

It is this model with one layer per block, 8 groups, and attention only at the lowest resolution. Weights can
therefore be exchanged, and the shipped model of shapes does not need diffusers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..diffusion.schedules import Schedule

GROUPS, HEAD = 8, 8  # of the normalizations; numbers per head of the attention


class TimeEmbedding(nn.Module):
    """An MLP on the sines and cosines of the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, 4 * width)
        self.linear_2 = nn.Linear(4 * width, 4 * width)

    def forward(self, t: Tensor) -> Tensor:
        """t (B,) -> (B, 4·width)."""
        half = self.linear_1.in_features // 2
        rates = torch.exp(-math.log(10_000) / half * torch.arange(half, device=t.device, dtype=torch.float32))
        angles = t[:, None].float() * rates
        waves = torch.cat([angles.cos(), angles.sin()], 1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(waves)))


class ResidualBlock(nn.Module):
    """x + two convolutions; the time is added after the first."""

    def __init__(self, channels: int, width: int, time: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.time_emb_proj = nn.Linear(time, width)
        self.norm2 = nn.GroupNorm(GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv_shortcut = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x (B, channels, H, W), time (B, T) -> (B, width, H, W)."""
        h = self.conv1(F.silu(self.norm1(x))) + self.time_emb_proj(F.silu(time))[..., None, None]
        return self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """x + attention between the pixels of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(GROUPS, width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        """x (B, width, H, W) -> like x."""
        pixels = self.group_norm(x).flatten(2).transpose(1, 2)
        parts = (
            each(pixels).unflatten(2, (-1, HEAD)).transpose(1, 2)
            for each in (self.to_q, self.to_k, self.to_v)
        )
        found = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return x + self.to_out[0](found).transpose(1, 2).reshape(x.shape)


class Resample(nn.Module):
    """Half or twice the resolution, and a convolution."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, width, H, W) -> (B, width, H/2, W/2) with a stride of 2, otherwise (B, width, 2H, 2W)."""
        if self.conv.stride == (1, 1):
            x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        return self.conv(x)


class Resolution(nn.Module):
    """The residual blocks of one resolution, each followed by attention, if there is any."""

    def __init__(self, sizes: list[tuple[int, int]], time: int, attention: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([ResidualBlock(*size, time) for size in sizes])
        self.attentions = nn.ModuleList([Attention(width) for _, width in sizes] if attention else [])

    def run(self, place: int, x: Tensor, time: Tensor) -> Tensor:
        """Run the block with this index."""
        x = self.resnets[place](x, time)
        return self.attentions[place](x) if self.attentions else x


class Down(Resolution):
    """One resolution of the encoder; all but the last end by halving the resolution."""

    def __init__(self, size: tuple[int, int], time: int, last: bool = False) -> None:
        super().__init__([size], time, attention=last)
        self.downsamplers = nn.ModuleList([] if last else [Resample(size[1], 2)])

    def forward(self, x: Tensor, time: Tensor) -> list[Tensor]:
        """The outputs that the decoder needs; the last one goes to the next resolution."""
        h = self.run(0, x, time)
        return [h, *(half(h) for half in self.downsamplers)]


class Middle(nn.Module):
    """Two residual blocks with attention in between."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([Attention(width)])
        self.resnets = nn.ModuleList([ResidualBlock(width, width, time), ResidualBlock(width, width, time)])

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x (B, width, H, W), time (B, T) -> like x."""
        return self.resnets[1](self.attentions[0](self.resnets[0](x, time)), time)


class Up(Resolution):
    """One resolution of the decoder; all but the last end by doubling the resolution."""

    def __init__(
        self, sizes: list[tuple[int, int]], time: int, first: bool = False, last: bool = False
    ) -> None:
        super().__init__(sizes, time, attention=first)
        self.upsamplers = nn.ModuleList([] if last else [Resample(sizes[-1][1], 1)])

    def forward(self, x: Tensor, passed: list[Tensor], time: Tensor) -> Tensor:
        """Run the blocks; each one also takes the latest unused output of the encoder."""
        for place in range(len(self.resnets)):
            x = self.run(place, torch.cat([x, passed.pop()], 1), time)
        for twice in self.upsamplers:
            x = twice(x)
        return x


class UNet(nn.Module):
    """A UNet with three resolutions and attention at the lowest.

    Args:
        channels: The number of channels of an image.
        width: The number of channels at full resolution, a multiple of 8; twice and four times as many below.
        schedule: Not used: the network is called with t − 1 in 0..T−1 and embeds this number.
    """

    def __init__(self, channels: int, width: int, schedule: Schedule) -> None:
        super().__init__()
        time, w, w2, w4 = 4 * width, width, 2 * width, 4 * width
        self.conv_in = nn.Conv2d(channels, w, 3, padding=1)
        self.time_embedding = TimeEmbedding(w)
        self.down_blocks = nn.ModuleList(
            [Down((w, w), time), Down((w, w2), time), Down((w2, w4), time, last=True)]
        )
        self.mid_block = Middle(w4, time)
        self.up_blocks = nn.ModuleList([
            Up([(w4 + w4, w4), (w4 + w2, w4)], time, first=True),
            Up([(w4 + w2, w2), (w2 + w, w2)], time),
            Up([(w2 + w, w), (w + w, w)], time, last=True),
        ])  # fmt: skip
        self.conv_norm_out = nn.GroupNorm(GROUPS, w)
        self.conv_out = nn.Conv2d(w, channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, channels, H, W), H and W multiples of 4, t (B,) integers in 0..T−1 -> like x."""
        time = self.time_embedding(t)
        passed = [self.conv_in(x)]
        for down in self.down_blocks:
            passed += down(passed[-1], time)
        h = self.mid_block(passed[-1], time)
        for up in self.up_blocks:
            h = up(h, passed, time)
        return self.conv_out(F.silu(self.conv_norm_out(h)))
