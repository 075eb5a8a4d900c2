"""Two interleaved half circles in the plane, made by code, and how far a point is from the nearest one."""

from __future__ import annotations

import torch
from torch import Tensor

SD = 0.03  # of the noise around the curves
RADIUS = 0.57
CENTERS = torch.tensor([[-0.285, -0.1425], [0.285, 0.1425]])  # the first arc is above its own
CLASSES = ("upper arc", "lower arc")
QUANTILE = 0.999  # of the distances of real points; points beyond it are bad
_UP = torch.tensor([1.0, -1.0])


def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """`n` points in [−1, 1]², (n, 2), and the arc of each, (n,); the arcs take turns."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    angle = torch.pi * torch.rand(n, generator=generator)
    way = torch.stack([angle.cos(), _UP[labels] * angle.sin()], 1)
    return CENTERS[labels] + RADIUS * way + SD * torch.randn(n, 2, generator=generator), labels


def distances(x: Tensor) -> Tensor:
    """The distance of points (n, 2) from each arc, (n, 2) float64."""
    from_center = x.double()[:, None] - CENTERS
    across, up = from_center[..., 0], from_center[..., 1] * _UP
    circle = (from_center.norm(dim=-1) - RADIUS).abs()
    ends = torch.hypot(across.abs() - RADIUS, up)
    return torch.where(up >= 0, circle, ends)


def bad(x: Tensor) -> Tensor:
    """Which points are farther from both arcs than 99.9% of real points, (n,) bool."""
    limit = distances(make(20_000, seed=2)[0]).min(1).values.quantile(QUANTILE)
    return distances(x).min(1).values > limit


def classes(x: Tensor) -> Tensor:
    """The nearest arc of each point, (n,)."""
    return distances(x).argmin(1)
