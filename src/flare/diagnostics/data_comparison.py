"""A few samples of a model beside its data: range, mean, standard deviation, energy distance, neighbors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_DATA = 20  # samples of the data; fewer say too little
REFERENCE = 1000  # samples of the data to compare with
NEIGHBORS = 5
SPLITS = 20  # of the data, for the reference of the energy distance
FAR = 1 / 3  # a model is far from the data if more than this fraction of its samples is


@dataclass(frozen=True)
class DataComparison:
    """Samples of a model beside its data.

    Attributes:
        n: how many samples.
        far: the fraction of the samples that are farther from the data than 99% of other data is, by the mean
            distance to the 5 nearest of up to 1,000 samples of the data.
        energy_distance: to the data, as a fraction of the mean distance within the data.
        energy_reference: the largest between two parts of the data itself, of 20 random splits.
        mean: of all numbers of the samples.
        std: their standard deviation.
        low: the smallest.
        high: the largest.
        data_mean: the same of the data.
        data_std: the same of the data.
        data_low: the same of the data.
        data_high: the same of the data.
    """

    n: int
    far: float
    energy_distance: float
    energy_reference: float
    mean: float
    std: float
    low: float
    high: float
    data_mean: float
    data_std: float
    data_low: float
    data_high: float

    @property
    def problem(self) -> str | None:
        """What is wrong with the samples, in plain words; None if nothing is."""
        distant = self.energy_distance > max(3 * self.energy_reference, 0.02)
        off_center = abs(self.mean - self.data_mean) > 0.5 * self.data_std
        off_size = not 2 / 3 < self.std / self.data_std < 3 / 2
        signs = {
            f"{self.far:.0%} of {self.n} are farther from it than 99% of real samples are": self.far > FAR,
            f"their energy distance to it is {self.energy_distance:.3g} (within the data at most "
            f"{self.energy_reference:.3g})": distant,
            f"their mean is {self.mean:.3g} and their standard deviation {self.std:.3g} (data: "
            f"{self.data_mean:.3g} and {self.data_std:.3g})": off_center or off_size,
        }
        if not any(signs.values()):
            return None
        seen = ", ".join(sign for sign, is_seen in signs.items() if is_seen)
        return f"The model's samples are far from the data: {seen}."


def compare_with_data(samples: Tensor, data: Tensor, seed: int = 0) -> DataComparison | None:
    """Compare samples (n, *shape) with data (N, *shape); None if the data has fewer than 20 samples.

    Args:
        samples: of a model.
        data: that it was trained on, or better, more data of the same kind.
        seed: of the rows of the data, and of its splits.
    """
    if len(data) < MIN_DATA:
        return None
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    x, real = samples.flatten(1).double(), data.flatten(1)[order].double()
    n = len(x)
    held = min(n, len(real) // 2)
    real = real[: held + REFERENCE]
    numbers = [(v.mean(), v.std(), v.min(), v.max()) for v in (x, real)]
    origin = real.median(0).values  # far from 0 the products of cdist cancel
    x, real = x - origin, real - origin
    reference = real[held:]
    within, across = torch.cdist(real, real), torch.cdist(x, reference)
    typical = float(_mean_between(within))
    k = min(NEIGHBORS, len(reference))
    ours, theirs = (d.topk(k, largest=False).values.mean(1) for d in (across, within[:held, held:]))
    parts = [held, len(real) - held]
    splits = (torch.randperm(len(real), generator=generator).split(parts) for _ in range(SPLITS))
    null = [_energy(within[a][:, b], within[a][:, a], within[b][:, b]) for a, b in splits]
    energy = _energy(across, torch.cdist(x, x), within[held:, held:])
    return DataComparison(
        n,
        float((ours > theirs.quantile(0.99)).double().mean()),
        energy / typical,
        max(null) / typical,
        *(float(value) for both in numbers for value in both),
    )


def _mean_between(distances: Tensor) -> Tensor:
    """The mean distance of two different samples, from the distances of all, (n, n)."""
    return distances.sum() / (len(distances) * (len(distances) - 1))


def _energy(across: Tensor, first: Tensor, second: Tensor) -> float:
    """2·E‖x−y‖ − E‖x−x'‖ − E‖y−y'‖ from the distances across and within two clouds."""
    return float(2 * across.mean() - _mean_between(first) - _mean_between(second))
