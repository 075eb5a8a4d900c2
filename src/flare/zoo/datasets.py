"""The four synthetic data sets of the paper, generated from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.validation import one_of, require_positive_int

GRID_SD = 0.05
SINES_SD = 0.1


def grid_centers(side: int = 3) -> Tensor:
    """The centers of side × side modes around 0, 1 apart, (side², 2); the last coordinate varies fastest.

    >>> flare.zoo.datasets.grid_centers(2)
    tensor([[-0.5000, -0.5000],
            [-0.5000,  0.5000],
            [ 0.5000, -0.5000],
            [ 0.5000,  0.5000]])
    """
    axis = torch.arange(require_positive_int("side", side), dtype=torch.float32) - (side - 1) / 2
    return torch.cartesian_prod(axis, axis)


GRID_CENTERS = grid_centers()


def grid(n: int = 54_000, seed: int = 0, side: int = 3, without: Sequence[int] = ()) -> Tensor:
    """Nine Gaussians in the plane, centers {−1, 0, 1}², standard deviation 0.05: (n, 2).

    The modes alternate, so a multiple of nine is balanced (6,000 per mode by default).

    >>> flare.zoo.datasets.grid(90, seed=0).shape
    torch.Size([90, 2])

    Args:
        n: the number of points.
        seed: of the noise.
        side: side × side modes, at the same distance.
        without: modes to leave out, as rows of `grid_centers(side)`.
    """
    g = _generator(n, seed)
    centers = grid_centers(side)
    remaining = [mode for mode in range(len(centers)) if mode not in set(without)]
    if not remaining:
        raise ValueError(f"all {len(centers)} modes were left out; leave at least one.")
    clean = centers[remaining][torch.arange(n) % len(remaining)]
    return clean + GRID_SD * torch.randn(n, 2, generator=g)


def sine_modes(dtype: torch.dtype = torch.float32) -> Tensor:
    """The two noiseless curves sin(2πτ) and −sin(2πτ) at 10 points τ on [0, 1], (2, 10).

    >>> flare.zoo.datasets.sine_modes().sum(0).abs().max()
    tensor(0.)
    """
    wave = torch.sin(2 * math.pi * torch.linspace(0, 1, 10, dtype=dtype))
    return torch.stack([wave, -wave])


def sines(n: int = 5_000, seed: int = 0) -> Tensor:
    """±sin(2πτ) at 10 points τ on [0, 1], noise 0.1, alternating signs: (n, 10).

    >>> flare.zoo.datasets.sines(50, seed=0).shape
    torch.Size([50, 10])
    """
    g = _generator(n, seed)
    clean = sine_modes()[torch.arange(n) % 2]
    return clean + SINES_SD * torch.randn(n, 10, generator=g)


def chirp(n: int = 8_000, seed: int = 0) -> Tensor:
    """A·sin 2π(f0·τ + ½k·τ²) at 80 points, noise 0.02: (n, 80).

    A ∈ [0.6, 1.4], f0 ∈ [0.5, 1], k ∈ [2, 5], each uniform.

    >>> flare.zoo.datasets.chirp(50, seed=0).shape
    torch.Size([50, 80])
    """
    g = _generator(n, seed)
    tau = _tau(80)
    amplitude, f0, k = (_uniform(g, n, *r) for r in ((0.6, 1.4), (0.5, 1.0), (2.0, 5.0)))
    clean = amplitude * torch.sin(2 * math.pi * (f0 * tau + 0.5 * k * tau**2))
    return clean + 0.02 * torch.randn(n, 80, generator=g)


def damped(n: int = 8_000, seed: int = 0) -> Tensor:
    """A·e^{−dτ}·sin 2π(fτ + φ) at 40 points, noise 0.03: (n, 40).

    A ∈ [0.8, 1.3], f ∈ [0.8, 1.5], d ∈ [1, 5], φ ∈ [0, 2π], each uniform.

    >>> flare.zoo.datasets.damped(50, seed=0).shape
    torch.Size([50, 40])
    """
    g = _generator(n, seed)
    tau = _tau(40)
    ranges = ((0.8, 1.3), (0.8, 1.5), (1.0, 5.0), (0.0, 2 * math.pi))
    amplitude, f, d, phase = (_uniform(g, n, *r) for r in ranges)
    clean = amplitude * torch.exp(-d * tau) * torch.sin(2 * math.pi * (f * tau + phase))
    return clean + 0.03 * torch.randn(n, 40, generator=g)


DATASETS: dict[str, Callable[..., Tensor]] = {make.__name__: make for make in (grid, sines, chirp, damped)}


def make(name: str, n: int | None = None, seed: int = 0, **options: Any) -> Tensor:
    """Generate a data set by name, float32, in its default size unless n is given.

    >>> flare.zoo.datasets.make("grid", 90, seed=0).shape
    torch.Size([90, 2])
    """
    maker = DATASETS[one_of("data set", name, DATASETS)]
    return maker(seed=seed, **options) if n is None else maker(n, seed, **options)


def _generator(n: int, seed: int) -> torch.Generator:
    require_positive_int("n", n)
    return torch.Generator().manual_seed(seed)


def _tau(points: int) -> Tensor:
    return torch.linspace(0, 1, points)


def _uniform(g: torch.Generator, n: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(n, 1, generator=g)
