"""The distance of a sample from the truth: exact for mixtures, a least-squares fit for curves.

`distance(name, x)` decides what is a hallucination. For the mixtures (grid, sines) it is the distance to the
nearest mode in units of its standard deviation; for the curves (chirp, damped) it is the root mean square
distance to the nearest noiseless curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from ..core.validation import one_of
from .datasets import GRID_CENTERS, GRID_SD, SINES_SD, sine_modes

QUANTILE = 0.999  # of the distances of real samples; samples beyond it are hallucinations


def distance(name: str, x: Tensor) -> Tensor:
    """The distance of samples x (n, d) from the truth of a benchmark, (n,) float64.

    >>> flare.bench.oracles.distance("sines", flare.bench.datasets.sine_modes()).round(decimals=3)
    tensor([0., 0.], dtype=torch.float64)
    """
    if one_of("benchmark", name, BENCHMARKS) in CURVES:
        return fit(CURVES[name], x)[1]
    centers, sd = MIXTURES[name]
    return torch.cdist(x.double(), centers).min(dim=1).values / sd


def find_hallucinations(name: str, x: Tensor, real: Tensor) -> Tensor:
    """Which samples are farther from the truth than 99.9% of real samples, (n,) bool.

    >>> flare.bench.oracles.find_hallucinations("sines", torch.zeros(1, 10), data)
    tensor([True])
    """
    return distance(name, x) > threshold(name, real)


def threshold(name: str, real: Tensor) -> float:
    """The distance from the truth that 99.9% of real samples stay within.

    >>> flare.bench.oracles.threshold("sines", data) > 1  # in units of the standard deviation
    True
    """
    return distance(name, real).quantile(QUANTILE).item()


def modes(name: str, x: Tensor) -> Tensor:
    """The nearest mode of each sample of grid or sines, (n,).

    >>> flare.bench.oracles.modes("sines", data[:4])
    tensor([0, 1, 0, 1])
    """
    return torch.cdist(x.double(), MIXTURES[one_of("mixture", name, MIXTURES)][0]).min(dim=1).indices


#: mixtures of equally likely isotropic Gaussians: centers (k, d) in float64, and their standard deviation
MIXTURES = {
    "grid": (GRID_CENTERS.double(), GRID_SD),
    "sines": (sine_modes(torch.float64), SINES_SD),
}


class Curve(NamedTuple):
    """A family of curves.

    Attributes:
        shape: The curve of parameters (P,) at times (L,), (L,).
        ranges: The range of each parameter.
        grid: The number of starting values per parameter of a fit.
        turns: The parameters that are angles in turns. Only their fractional part matters.
    """

    shape: Callable[[Tensor, Tensor], Tensor]
    ranges: Sequence[tuple[float, float]]
    grid: Sequence[int]
    turns: Sequence[int] = ()


def _chirp(p: Tensor, tau: Tensor) -> Tensor:
    return p[0] * torch.sin(2 * math.pi * (p[1] * tau + 0.5 * p[2] * tau**2))


def _damped(p: Tensor, tau: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[2] * tau) * torch.sin(2 * math.pi * (p[1] * tau + p[3]))


# The phase of damped is in turns: one turn is enough, with room for steps past both ends.
CURVES = {
    "chirp": Curve(_chirp, [(0.6, 1.4), (0.5, 1.0), (2.0, 5.0)], [5, 9, 25]),
    "damped": Curve(_damped, [(0.8, 1.3), (0.8, 1.5), (1.0, 5.0), (-0.5, 1.5)], [3, 6, 6, 16], [3]),
}
BENCHMARKS = (*MIXTURES, *CURVES)


def fit(curve: Curve, x: Tensor, starts: int = 3, iterations: int = 40) -> tuple[Tensor, Tensor]:
    """The nearest curve within the ranges: parameters (n, P), root mean square distance (n,).

    The best `starts` points of a grid, each refined by Levenberg-Marquardt steps clamped to the ranges.

    >>> chirps = flare.bench.datasets.chirp(4)
    >>> curve = flare.bench.oracles.CURVES["chirp"]
    >>> parameters, distance = flare.bench.oracles.fit(curve, chirps)
    >>> parameters.shape, bool((distance < 0.05).all())
    (torch.Size([4, 3]), True)
    """
    x = x.double()
    tau = torch.linspace(0, 1, x.shape[1], dtype=torch.float64)
    axes = [
        torch.linspace(a, b, k, dtype=torch.float64)
        for (a, b), k in zip(curve.ranges, curve.grid, strict=True)
    ]
    points = torch.cartesian_prod(*axes)
    curves = vmap(lambda p: curve.shape(p, tau))(points)
    nearest = torch.cdist(x, curves).topk(starts, largest=False).indices  # (n, starts)
    params = points[nearest].flatten(0, 1)  # (n·starts, P)
    target = x.repeat_interleave(starts, dim=0)
    params, squared = _refine(curve, params, target, iterations)
    best = squared.view(-1, starts).argmin(dim=1, keepdim=True)
    squared = squared.view(-1, starts).gather(1, best)[:, 0]
    chosen = params.view(-1, starts, params.shape[1]).gather(
        1, best[..., None].expand(-1, 1, params.shape[1])
    )
    return chosen[:, 0], (squared / x.shape[1]).sqrt()


def _refine(curve: Curve, params: Tensor, target: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt for all rows at once; a step that does not lower the error is rejected."""
    tau = torch.linspace(0, 1, target.shape[1], dtype=torch.float64)
    low, high = torch.tensor(curve.ranges, dtype=torch.float64).T
    values = vmap(lambda p: curve.shape(p, tau))
    slopes = vmap(jacfwd(lambda p: curve.shape(p, tau)))
    damping = torch.full((len(params), 1, 1), 1e-2, dtype=torch.float64)
    residual = values(params) - target
    squared = residual.square().sum(1)
    eye = torch.eye(params.shape[1], dtype=torch.float64)
    for _ in range(iterations):
        J = slopes(params)  # (n, L, P)
        # active set: a parameter at a bound stays there while its step points outward
        gradient = torch.einsum("nlp,nl->np", J, residual)
        held = ((params <= low) & (gradient > 0)) | ((params >= high) & (gradient < 0))
        J = J * ~held[:, None]
        normal = J.mT @ J
        scale = normal.diagonal(dim1=1, dim2=2).clamp(min=1e-9)
        step = torch.linalg.solve(normal + damping * scale[:, :, None] * eye + 1e-12 * eye, gradient * ~held)
        candidate = (params - step).clamp(low, high)
        new = values(candidate) - target
        better = new.square().sum(1) < squared
        params = torch.where(better[:, None], candidate, params)
        residual = torch.where(better[:, None], new, residual)
        squared = torch.where(better, new.square().sum(1), squared)
        damping = torch.where(better[:, None, None], damping / 3, damping * 4).clamp(1e-9, 1e9)
    return params, squared
