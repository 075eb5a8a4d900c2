"""Denoising errors per noise level, compared with references that only use the data.

Two references need no training. The error of a constant predictor is the variance of its target.
The best linear denoiser of data with covariance eigenvalues λ has the error mean λσ²/(α²λ + σ²) in x_0, and a
trained network is at least about as good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import take_rows, to_device
from ..diffusion.parameterizations import Prediction, coefficients, sigma_data, target
from ..diffusion.schedules import Level, Schedule
from ..network.denoiser import Denoiser, times

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)  # levels as fractions of T
NUMBERS = 4096  # errors per level that are averaged, within 16 to 128 samples
BASIS = 512  # samples that span the principal directions
ROWS = 256  # samples that are converted to float64 at once


@dataclass(frozen=True)
class LevelError:
    """The mean squared error of the network's output at one noise level, and its references.

    Attributes:
        time: The time that the network receives.
        error: The error of the network.
        linear: The error of the best linear denoiser of the data.
        nothing: The error of a constant output, which is the variance of the target; for a preconditioned
            network, that of a constant x̂0.
    """

    time: float
    error: float
    linear: float
    nothing: float


@dataclass(frozen=True)
class Assumption:
    """An assumption about the training: levels, spectrum and scale of the data, sign of the output.

    `cause` puts it into words.
    """

    cause: str
    levels: Sequence[Level]
    spectrum: Tensor
    sign: float = 1.0
    rescale: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class DenoisingTask:
    """A network with its data, schedule and conditions, and the seed of all random draws."""

    denoiser: Denoiser
    data: Tensor
    schedule: Schedule
    cond: dict[str, Any]
    seed: int

    @property
    def levels(self) -> list[Level]:
        """Where the errors are measured."""
        return [self.schedule.at_fraction(fraction) for fraction in FRACTIONS]

    @property
    def predictions(self) -> list[Prediction]:
        """The possible predictions of the network, the configured one first."""
        own = self.denoiser.prediction
        others: list[Prediction] = ["epsilon", "sample"]
        if not self.schedule.variance_exploding:
            others.append("v" if self.schedule.variance_preserving else "flow")
        return [own, *(name for name in others if name != own)]

    def errors(self, assumed: Assumption) -> dict[Prediction, list[LevelError]]:
        """Compute the errors of the network per level, for everything that it may predict."""
        generator = torch.Generator().manual_seed(self.seed)
        size = min(128, max(16, NUMBERS // self.data[0].numel()))
        found: dict[Prediction, list[LevelError]] = {name: [] for name in self.predictions}
        for level in assumed.levels:
            rows = torch.randint(len(self.data), (size,), generator=generator)
            clean = self.data[rows] if assumed.rescale is None else assumed.rescale(self.data[rows])
            # in float32 for every dtype: the same noise for a float64 network
            noise = torch.randn(clean.shape, generator=generator).to(clean.dtype)
            x = (level.alpha * clean + level.sigma * noise).to(self.denoiser.device)
            own = to_device(take_rows(self.cond, rows), x.device)
            out = assumed.sign * self.denoiser(x, times(level.time, x), own).cpu()
            alpha, sigma = (torch.tensor(v, dtype=clean.dtype) for v in (level.alpha, level.sigma))
            for name, errors in found.items():
                error = float((out - target(name, alpha, sigma, clean, noise)).double().square().mean())
                error = error if math.isfinite(error) else math.inf
                errors.append(LevelError(level.time, error, *_references(name, level, assumed.spectrum)))
        return found

    def excesses(self, assumed: Assumption) -> dict[Prediction, float]:
        """Compute the excess of every prediction under another assumption; none if the network fails."""
        try:
            return {name: excess_of(errors) for name, errors in self.errors(assumed).items()}
        except Exception:  # the network is foreign code and may not take such times
            return {}


def _references(prediction: Prediction, level: Level, spectrum: Tensor) -> tuple[float, float]:
    """Compute the errors of the best linear denoiser and of a constant, in units of the prediction."""
    alpha2, sigma2, variance = level.alpha**2, level.sigma**2, float(spectrum.mean())
    linear = float((spectrum * sigma2 / (alpha2 * spectrum + sigma2)).mean())
    if sigma_data(prediction) is not None:
        # a constant output already is a linear denoiser, so the reference is a constant x̂0
        _, q = coefficients(prediction, level.alpha, level.sigma)
        return linear / q**2, variance / q**2
    # an error of 1 in x_0 in these units, and the variance of the target
    unit, nothing = {
        "epsilon": (alpha2 / sigma2, 1.0),
        "sample": (1.0, variance),
        "v": (1 / sigma2, alpha2 + sigma2 * variance),
        "flow": (1 / sigma2, 1 + variance),
    }[prediction]
    return unit * linear, nothing


def excess_of(errors: Sequence[LevelError]) -> float:
    """The error between the references, over all levels: 0 is the best linear denoiser, 1 is a constant."""
    above = sum((level.error - level.linear) / level.nothing for level in errors)
    return above / sum(1 - level.linear / level.nothing for level in errors)


def spectrum_of(data: Tensor, seed: int, rescale: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Estimate the variances of the data along its principal directions, (d,) float64.

    The directions come from one half of the data and the variances from the other. With few samples, the
    variances of the same half are too small in some directions, and no network could reach the reference.
    """
    order, d = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)), data[0].numel()
    most = min(BASIS, max(16, 2**24 // d))
    half = -(-len(data) // 2)
    rest = order[half:][: 4 * most]
    if not len(rest):
        return torch.zeros(d, dtype=torch.float64)

    def read(rows: Tensor) -> Tensor:
        return (data[rows] if rescale is None else rescale(data[rows])).flatten(1).double()

    basis = read(order[: min(half, most)])
    mean = basis.mean(0)
    directions = torch.linalg.svd(basis - mean, full_matrices=False).Vh
    along, total = torch.zeros(len(directions), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for rows in rest.split(ROWS):  # all of them may not fit in memory
        part = read(rows) - mean
        along += (part @ directions.T).square().sum(0) / len(rest)
        total += part.square().sum() / len(rest)
    beyond = d - len(along)  # the rest is spread over the directions that the basis misses
    left = (total - along.sum()).clamp(min=0) / max(1, beyond)
    return torch.cat([along, left.expand(beyond)])
