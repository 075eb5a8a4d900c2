"""The floor and the ceiling of every filter, and what the truth says of one.

The truth of curves is a fit of each sample, which takes longer than all else. So it is asked once for a
benchmark and once for a set of samples; a filter then only chooses among what is known:

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

BENCHMARKS = ("grid", "sines", "chirp", "damped")


def random_score(n: int, seed: int) -> Tensor:
    """The floor: a score that knows nothing of the samples, uniform on [0, 1), (n,) float64."""
    g = torch.Generator().manual_seed(seed)
    return torch.rand(validation.require_positive_int("n", n), generator=g, dtype=torch.float64)


def oracle_score(name: str, x: Tensor) -> Tensor:
    """The ceiling: the true distance of samples x (n, d), (n,) float64; also found as `Truth.distance`.

    It finds every hallucination, but it also prefers what is typical: nothing says that it keeps diversity.
    """
    return oracles.distance(name, validation.require_samples("x", x))


@dataclass(frozen=True, eq=False)
class Benchmark:
    """What is known of a benchmark before any sample is drawn; make it with `of`.

    Attributes:
        name: grid, sines, chirp or damped.
        threshold: the distance from the truth that 99.9% of real samples keep.
        held_out: what samples should look like, (m, d).
        spread: how diverse held-out data is: the within-mode variance of grid and sines, (1,), the standard
            deviation of each parameter of the curves of chirp and damped, (P,).
    """

    name: str
    threshold: float
    held_out: Tensor
    spread: Tensor

    @classmethod
    def of(cls, name: str, real: Tensor, held_out: Tensor) -> Benchmark:
        """From real data (n, d), which sets what a hallucination is, and held-out data (m, d)."""
        validation.one_of("benchmark", name, BENCHMARKS)
        _same_shape(
            "real", validation.require_samples("real", real), validation.require_samples("held_out", held_out)
        )
        _, what = _known(name, held_out)
        return cls(name, oracles.threshold(name, real), held_out, _spread(name, held_out, what))

    def truth(self, x: Tensor) -> Truth:
        """What the truth says of samples x (n, d)."""
        _same_shape("x", validation.require_samples("x", x), self.held_out)
        return Truth(self, x, *_known(self.name, x))


@dataclass(frozen=True, eq=False)
class Truth:
    """What the truth says of one set of samples.

    Attributes:
        benchmark: what it is measured by.
        x: the samples, (n, d).
        distance: how far each is from the truth, (n,): as a score, the ceiling of every filter.
        what: the nearest mode of grid and sines, (n,), or the parameters of the nearest curve, (n, P).
    """

    benchmark: Benchmark
    x: Tensor
    distance: Tensor
    what: Tensor

    @classmethod
    def of(cls, name: str, x: Tensor, real: Tensor, held_out: Tensor) -> Truth:
        """All at once, for a single set of samples x (n, d)."""
        return Benchmark.of(name, real, held_out).truth(x)

    @property
    def bad(self) -> Tensor:
        """Which samples are hallucinations, (n,) bool."""
        return self.distance > self.benchmark.threshold

    def assess(self, kept: Tensor) -> dict[str, float]:
        """The figures of the filter that keeps these samples, a mask (n,) of 2 or more.

        - hallucination_rate: the share of hallucinations among the kept;
        - energy_distance: to the held-out data, 0 if alike;
        - smallest_mode, largest_mode: shares of the kept, for grid and sines;
        - mode_change: the largest change of a mode's share by the filter, in points (of 100);
        - within_mode_variance, for grid and sines: the kept's over that of held-out data;
        - parameter_spread, for chirp and damped: the standard deviation of a fitted parameter over that of
          held-out data, mean of the parameters.

        The last two are 1 if the filter leaves the diversity that real data has, and less if it only keeps
        what is typical.
        """
        if kept.shape != self.distance.shape or kept.dtype != torch.bool or kept.sum() < 2:
            raise ValueError(
                f"kept must be a mask ({len(self.x)},) of 2 samples or more, got {tuple(kept.shape)} "
                f"{kept.dtype} with {int(kept.sum())} of them; make it with flare.keep_fraction."
            )
        name, x, what = self.benchmark.name, self.x[kept], self.what[kept]
        figures = {
            "hallucination_rate": metrics.rate(self.bad, kept),
            "energy_distance": metrics.energy_distance(x, self.benchmark.held_out),
        }
        diversity = (_spread(name, x, what) / self.benchmark.spread).mean().item()
        if name in oracles.CURVES:
            return figures | {"parameter_spread": diversity}
        count = oracles.mode_count(name)
        before, after = metrics.mode_shares(self.what, count), metrics.mode_shares(what, count)
        return figures | {
            "smallest_mode": after.min().item(),
            "largest_mode": after.max().item(),
            "mode_change": 100 * (after - before).abs().max().item(),
            "within_mode_variance": diversity,
        }


def _known(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The distance from the truth (n,), and the mode (n,) or the parameters (n, P) that it is to."""
    if name in oracles.CURVES:
        params, distance = oracles.fit(oracles.CURVES[name], x)
        return distance, params
    return oracles.distance(name, x), oracles.modes(name, x)


def _spread(name: str, x: Tensor, what: Tensor) -> Tensor:
    """The within-mode variance of grid and sines (1,), the standard deviations of the parameters (P,)."""
    if name not in oracles.CURVES:
        return torch.tensor([metrics.within_mode_variance(x, what, oracles.mode_count(name))])
    spread = what.std(dim=0)
    for i in oracles.CURVES[name].turns:
        # that of the point on the unit circle: an angle itself has no spread that is free of where it is cut
        angle = 2 * math.pi * what[:, i]
        spread[i] = torch.stack([angle.cos(), angle.sin()]).var(dim=1).sum().sqrt()
    return spread


def _same_shape(what: str, x: Tensor, held_out: Tensor) -> None:
    if x.shape[1:] != held_out.shape[1:]:
        raise ValueError(
            f"{what} has samples of shape {tuple(x.shape[1:])}, held_out of {tuple(held_out.shape[1:])}; "
            "both must be of the same benchmark."
        )
