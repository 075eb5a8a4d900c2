"""Small networks and data for the tests of a scorer: points, and images."""

from __future__ import annotations

import math

import torch
from torch import nn

import flare

T = 50


class Net(nn.Module):
    """An MLP for points, called as net(x, t); with classes also as net(x, t, label=...)."""

    def __init__(self, classes=0):
        super().__init__()
        self.label = nn.Embedding(classes, 4) if classes else None
        self.layers = nn.Sequential(nn.Linear(3 + 4 * bool(classes), 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, t, label=None):
        inputs = [x, t[:, None].to(x.dtype) / T]
        if self.label is not None:
            inputs.append(self.label(label).to(x.dtype))
        return self.layers(torch.cat(inputs, dim=1))


def ring(n=600, seed=0):
    """Points on a circle."""
    g = torch.Generator().manual_seed(seed)
    angle, radius = 2 * math.pi * torch.rand(n, generator=g), 1 + 0.15 * torch.randn(n, generator=g)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def trained(data, steps=400):
    """A network that has learned a little."""
    torch.manual_seed(0)
    net = Net()
    config = flare.training.TrainConfig(steps, learning_rate=5e-3, warmup=20, ema=0.98, weight_decay=0.0)
    run = flare.training.Training(net, data, flare.schedules.cosine(T), config, "epsilon")
    for _ in range(steps):
        run.step()
    net.load_state_dict(run.weights())
    return net


def images(n, seed=0):
    """Bright squares on black, in [−1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.full((n, 1, 8, 8), -1.0)
    for image, (row, column) in zip(found, torch.randint(0, 5, (n, 2), generator=generator), strict=True):
        image[:, row : row + 3, column : column + 3] = 1.0
    return (found + 0.02 * torch.randn(found.shape, generator=generator)).clamp(-1, 1)


def unet(**options):
    """A network of diffusers for such images."""
    from diffusers import UNet2DModel

    defaults = {
        "sample_size": 8, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 4,
        "block_out_channels": (4, 8), "down_block_types": ("DownBlock2D",) * 2,
        "up_block_types": ("UpBlock2D",) * 2,
    }  # fmt: skip
    torch.manual_seed(0)
    return UNet2DModel(**defaults | options).eval()


QUICK = {"pairs": 500, "check": False}
