"""The four synthetic data sets of the paper, colored shapes, and a real one: images of digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.validation import one_of, require_positive_int
from . import shapes as colored

GRID_SD = 0.05
SINES_SD = 0.1
TRAINING_DIGITS = 1_297  # of 1,797; the others are held out
_DIGITS_FILE = Path(__file__).parent / "data" / "digits.npz"


def grid_centers(side: int = 3) -> Tensor:
    """The centers of side × side modes around 0, 1 apart, (side², 2); the last coordinate varies fastest.

    >>> flare.bench.datasets.grid_centers(2)
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

    >>> flare.bench.datasets.grid(90, seed=0).shape
    torch.Size([90, 2])

    Args:
        n: The number of points.
        seed: Random seed for the noise.
        side: The number of modes per side of the grid.
        without: Modes to leave out, as rows of `grid_centers(side)`.
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

    >>> flare.bench.datasets.sine_modes().sum(0).abs().max()
    tensor(0.)
    """
    wave = torch.sin(2 * math.pi * torch.linspace(0, 1, 10, dtype=dtype))
    return torch.stack([wave, -wave])


def sines(n: int = 5_000, seed: int = 0) -> Tensor:
    """±sin(2πτ) at 10 points τ on [0, 1], noise 0.1, alternating signs: (n, 10).

    >>> flare.bench.datasets.sines(50, seed=0).shape
    torch.Size([50, 10])
    """
    g = _generator(n, seed)
    clean = sine_modes()[torch.arange(n) % 2]
    return clean + SINES_SD * torch.randn(n, 10, generator=g)


def chirp(n: int = 8_000, seed: int = 0) -> Tensor:
    """A·sin 2π(f0·τ + ½k·τ²) at 80 points, noise 0.02: (n, 80).

    A ∈ [0.6, 1.4], f0 ∈ [0.5, 1], k ∈ [2, 5], each uniform.

    >>> flare.bench.datasets.chirp(50, seed=0).shape
    torch.Size([50, 80])
    """
    g = _generator(n, seed)
    tau = torch.linspace(0, 1, 80)
    amplitude, f0, k = (_uniform(g, n, *r) for r in ((0.6, 1.4), (0.5, 1.0), (2.0, 5.0)))
    clean = amplitude * torch.sin(2 * math.pi * (f0 * tau + 0.5 * k * tau**2))
    return clean + 0.02 * torch.randn(n, 80, generator=g)


def damped(n: int = 8_000, seed: int = 0) -> Tensor:
    """A·e^{−dτ}·sin 2π(fτ + φ) at 40 points, noise 0.03: (n, 40).

    A ∈ [0.8, 1.3], f ∈ [0.8, 1.5], d ∈ [1, 5], φ ∈ [0, 2π], each uniform.

    >>> flare.bench.datasets.damped(50, seed=0).shape
    torch.Size([50, 40])
    """
    g = _generator(n, seed)
    tau = torch.linspace(0, 1, 40)
    ranges = ((0.8, 1.3), (0.8, 1.5), (1.0, 5.0), (0.0, 2 * math.pi))
    amplitude, f, d, phase = (_uniform(g, n, *r) for r in ranges)
    clean = amplitude * torch.exp(-d * tau) * torch.sin(2 * math.pi * (f * tau + phase))
    return clean + 0.03 * torch.randn(n, 40, generator=g)


def shapes(n: int = 8_000, seed: int = 0) -> Tensor:
    """Images of 32 × 32 pixels in [−1, 1] with two shapes of two kinds and two colors: (n, 3, 32, 32).

    The rule is exact, and `flare.bench.shapes.bad` checks it.

    >>> flare.bench.datasets.shapes(20, seed=0).shape
    torch.Size([20, 3, 32, 32])
    """
    return colored.make(require_positive_int("n", n), seed)[0]


def digits(n: int = TRAINING_DIGITS, seed: int = 0) -> Tensor:
    """Handwritten digits of 8 × 8 pixels in [−1, 1]: (n, 1, 8, 8), n of the 1,797 at random.

    These are real images, the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
    C. Kaynak, UCI Machine Learning Repository, CC BY 4.0), as scikit-learn ships them (BSD license).

    >>> flare.bench.datasets.digits(100).shape
    torch.Size([100, 1, 8, 8])
    """
    images = _read_digits()
    if require_positive_int("n", n) > len(images):
        raise ValueError(f"n must be at most {len(images):,}, the number of images, got {n:,}.")
    return images[torch.randperm(len(images), generator=_generator(n, seed))[:n]]


DATASETS: dict[str, Callable[..., Tensor]] = {
    make.__name__: make for make in (grid, sines, chirp, damped, shapes, digits)
}


def make(name: str, n: int | None = None, seed: int = 0, **options: Any) -> Tensor:
    """Generate a data set by name, float32, in its default size unless n is given.

    >>> flare.bench.datasets.make("grid", 90, seed=0).shape
    torch.Size([90, 2])
    """
    maker = DATASETS[one_of("data set", name, DATASETS)]
    return maker(seed=seed, **options) if n is None else maker(n, seed, **options)


@cache
def _read_digits() -> Tensor:
    with np.load(_DIGITS_FILE, allow_pickle=False) as file:
        return torch.from_numpy(file["images"])[:, None].float() / 8 - 1


def _generator(n: int, seed: int) -> torch.Generator:
    require_positive_int("n", n)
    return torch.Generator().manual_seed(seed)


def _uniform(g: torch.Generator, n: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(n, 1, generator=g)
