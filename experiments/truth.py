"""Filters measured by the truth of a benchmark: hallucinations, distance to real data, and diversity.

The truth of a curve needs a fit per sample, which is slow, so it is computed once per benchmark and once per
set of samples:

    judged = Truth("chirp", real, held_out).judge(x)
    figures = judged.assess(kept)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flare.bench import metrics, oracles
from flare.bench.oracles import CURVES, MIXTURES


class Truth:
    """The truth of a benchmark, computed before any sample is judged.

    Attributes:
        name: grid, sines, chirp or damped.
        threshold: The distance from the truth that 99.9% of real samples stay within.
        held_out: Held-out real data, (m, d).
        spread: The diversity of held-out data: the within-mode variance for grid and sines, (1,), or the
            standard deviation of each curve parameter for chirp and damped, (P,).

    Args:
        name: The name of the benchmark.
        real: Real data, (n, d), which sets the threshold of hallucinations.
        held_out: Held-out data, (m, d).
    """

    def __init__(self, name: str, real: Tensor, held_out: Tensor) -> None:
        self.name, self.held_out = name, held_out
        self.threshold = oracles.threshold(name, real)
        self.spread = _measure_spread(name, held_out, locate(name, held_out)[1])

    def judge(self, x: Tensor) -> Judged:
        """Compare samples x (n, d) with the truth."""
        return Judged(self, x, *locate(self.name, x))


class Judged(NamedTuple):
    """Samples compared with the truth.

    Attributes:
        truth: The truth.
        x: The samples, (n, d).
        distance: The distance of each sample from the truth, (n,); as a score it is the ceiling of every
            filter. It detects every hallucination, but it also prefers typical samples, so it may reduce
            diversity.
        nearest: The nearest mode for grid and sines, (n,), or the parameters of the nearest curve, (n, P).
    """

    truth: Truth
    x: Tensor
    distance: Tensor
    nearest: Tensor

    @property
    def bad(self) -> Tensor:
        """Which samples are hallucinations, (n,) bool."""
        return self.distance > self.truth.threshold

    def assess(self, kept: Tensor) -> dict[str, float]:
        """Measure a filter, given the mask (n,) of the samples that it keeps, at least 2.

        - hallucination_rate: the fraction of hallucinations among the kept samples;
        - energy_distance: to the held-out data, 0 if the distributions are equal;
        - smallest_mode, largest_mode: fractions of the kept samples, for grid and sines;
        - mode_change: the largest change of a mode's fraction by the filter, in percentage points;
        - within_mode_variance, for grid and sines: relative to held-out data;
        - parameter_spread, for chirp and damped: the standard deviation of a fitted parameter relative to
          held-out data, averaged over parameters.

        The last two are 1 if the filter preserves the diversity of real data, and smaller if it keeps only
        typical samples.
        """
        name, x, nearest = self.truth.name, self.x[kept], self.nearest[kept]
        figures = {
            "hallucination_rate": metrics.rate(self.bad, kept),
            "energy_distance": metrics.energy_distance(x, self.truth.held_out),
        }
        diversity = (_measure_spread(name, x, nearest) / self.truth.spread).mean().item()
        if name in CURVES:
            return figures | {"parameter_spread": diversity}
        count = len(MIXTURES[name][0])
        before, after = mode_shares(self.nearest, count), mode_shares(nearest, count)
        return figures | {
            "smallest_mode": after.min().item(),
            "largest_mode": after.max().item(),
            "mode_change": 100 * (after - before).abs().max().item(),
            "within_mode_variance": diversity,
        }


def locate(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The distance from the truth (n,), and the nearest mode (n,) or curve parameters (n, P)."""
    if name in CURVES:
        params, far = oracles.fit(CURVES[name], x)
        return far, params
    return oracles.distance(name, x), oracles.modes(name, x)


def mode_shares(modes: Tensor, count: int) -> Tensor:
    """The fraction of samples in each of `count` modes, (count,), from the mode of each sample, (n,)."""
    return modes.bincount(minlength=count).double() / len(modes)


def within_mode_variance(x: Tensor, modes: Tensor, count: int) -> float:
    """The unbiased variance of samples x (n, d) around the means of their modes.

    It is averaged over coordinates and over modes, with equal weight per mode; modes with fewer than 2
    samples are left out.
    """
    x = x.double().flatten(1)
    variances = [x[modes == mode].var(dim=0).mean() for mode in range(count) if (modes == mode).sum() > 1]
    return float(torch.stack(variances).mean())


def random_score(n: int, seed: int) -> Tensor:
    """A score that is independent of the samples, the floor of every filter: uniform on [0, 1), (n,)."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _measure_spread(name: str, x: Tensor, nearest: Tensor) -> Tensor:
    """The within-mode variance for grid and sines (1,), or the standard deviations of the parameters (P,)."""
    if name not in CURVES:
        return torch.tensor([within_mode_variance(x, nearest, len(MIXTURES[name][0]))])
    spread = nearest.std(dim=0)
    for i in CURVES[name].turns:
        # of the point on the unit circle: the spread of an angle depends on where the circle is cut
        angle = 2 * math.pi * nearest[:, i]
        spread[i] = torch.stack([angle.cos(), angle.sin()]).var(dim=1).sum().sqrt()
    return spread
