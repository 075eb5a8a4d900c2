"""Filters measured against the truth, with a random score as the floor and the true distance as the ceiling.

The truth of a curve benchmark needs a fit per sample, which is slow. It is computed once per benchmark and
once per set of samples, and any number of filters are then assessed with it:

    benchmark = Benchmark.of("chirp", real, held_out)
    truth = benchmark.truth(x)
    figures = truth.assess(keep_fraction(score, 0.5))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import validation
from . import metrics, oracles


def random_score(n: int, seed: int) -> Tensor:
    """The floor: a score that is independent of the samples, uniform on [0, 1), (n,) float64.

    >>> flare.keep_fraction(flare.bench.filter_truth.random_score(20, seed=0), 0.5).sum()
    tensor(10)
    """
    g = torch.Generator().manual_seed(seed)
    return torch.rand(validation.require_positive_int("n", n), generator=g, dtype=torch.float64)


def oracle_score(name: str, x: Tensor) -> Tensor:
    """The ceiling: the true distance of samples x (n, d), (n,) float64; equal to `Truth.distance`.

    It detects every hallucination, but it also prefers typical samples, so it may reduce diversity.

    >>> flare.bench.filter_truth.oracle_score("sines", result.samples).shape
    torch.Size([20])
    """
    return oracles.distance(name, validation.require_samples("x", x))


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The truth of a benchmark, computed before any sample is drawn; create it with `of`.

    Attributes:
        name: grid, sines, chirp or damped.
        threshold: the distance from the truth that 99.9% of real samples stay within.
        held_out: held-out real data, (m, d).
        spread: the diversity of held-out data: the within-mode variance for grid and sines, (1,), or the
            standard deviation of each curve parameter for chirp and damped, (P,).
    """

    name: str
    threshold: float
    held_out: Tensor
    spread: Tensor

    @classmethod
    def of(cls, name: str, real: Tensor, held_out: Tensor) -> Benchmark:
        """From real data (n, d), which sets the threshold of hallucinations, and held-out data (m, d)."""
        validation.one_of("benchmark", name, oracles.BENCHMARKS)
        _require_same_shape(
            "real", validation.require_samples("real", real), validation.require_samples("held_out", held_out)
        )
        _, nearest = _locate(name, held_out)
        return cls(name, oracles.threshold(name, real), held_out, _spread(name, held_out, nearest))

    def truth(self, x: Tensor) -> Truth:
        """Compare samples x (n, d) with the truth."""
        _require_same_shape("x", validation.require_samples("x", x), self.held_out)
        return Truth(self, x, *_locate(self.name, x))


@dataclass(frozen=True, eq=False)
class Truth:
    """One set of samples compared with the truth.

    Attributes:
        benchmark: the truth.
        x: the samples, (n, d).
        distance: of each sample from the truth, (n,); used as a score, the ceiling of every filter.
        nearest: the nearest mode for grid and sines, (n,), or the parameters of the nearest curve, (n, P).
    """

    benchmark: Benchmark
    x: Tensor
    distance: Tensor
    nearest: Tensor

    @classmethod
    def of(cls, name: str, x: Tensor, real: Tensor, held_out: Tensor) -> Truth:
        """Shortcut for a single set of samples x (n, d)."""
        return Benchmark.of(name, real, held_out).truth(x)

    @property
    def bad(self) -> Tensor:
        """Which samples are hallucinations, (n,) bool."""
        return self.distance > self.benchmark.threshold

    def assess(self, kept: Tensor) -> dict[str, float]:
        """Metrics of a filter, given the mask (n,) of the samples it keeps, at least 2.

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
        if kept.shape != self.distance.shape or kept.dtype != torch.bool or kept.sum() < 2:
            raise ValueError(
                f"kept must be a mask ({len(self.x)},) of 2 samples or more, got {tuple(kept.shape)} "
                f"{kept.dtype} with {int(kept.sum())} samples; make it with flare.keep_fraction."
            )
        name, x, nearest = self.benchmark.name, self.x[kept], self.nearest[kept]
        figures = {
            "hallucination_rate": metrics.rate(self.bad, kept),
            "energy_distance": metrics.energy_distance(x, self.benchmark.held_out),
        }
        diversity = (_spread(name, x, nearest) / self.benchmark.spread).mean().item()
        if name in oracles.CURVES:
            return figures | {"parameter_spread": diversity}
        count = oracles.mode_count(name)
        before, after = metrics.mode_shares(self.nearest, count), metrics.mode_shares(nearest, count)
        return figures | {
            "smallest_mode": after.min().item(),
            "largest_mode": after.max().item(),
            "mode_change": 100 * (after - before).abs().max().item(),
            "within_mode_variance": diversity,
        }


def _locate(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The distance from the truth (n,), and the nearest mode (n,) or curve parameters (n, P)."""
    if name in oracles.CURVES:
        params, distance = oracles.fit(oracles.CURVES[name], x)
        return distance, params
    return oracles.distance(name, x), oracles.modes(name, x)


def _spread(name: str, x: Tensor, nearest: Tensor) -> Tensor:
    """The within-mode variance for grid and sines (1,), or the standard deviations of the parameters (P,)."""
    if name not in oracles.CURVES:
        return torch.tensor([metrics.within_mode_variance(x, nearest, oracles.mode_count(name))])
    spread = nearest.std(dim=0)
    for i in oracles.CURVES[name].turns:
        # of the point on the unit circle: the spread of an angle depends on where the circle is cut
        angle = 2 * math.pi * nearest[:, i]
        spread[i] = torch.stack([angle.cos(), angle.sin()]).var(dim=1).sum().sqrt()
    return spread


def _require_same_shape(what: str, x: Tensor, held_out: Tensor) -> None:
    if x.shape[1:] != held_out.shape[1:]:
        raise ValueError(
            f"{what} has samples of shape {tuple(x.shape[1:])}, held_out of {tuple(held_out.shape[1:])}; "
            "give samples of the same benchmark."
        )
