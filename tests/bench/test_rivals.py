"""Sharpness, instability, EigenScore, SCOPED and RODS on a linear denoiser, worked out by hand.

ε̂(x) = w ∗ x + v, so σ·∂ε̂/∂x is diagonal with σ·w, and difference quotients are exact.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flare
from flare.bench import baselines
from flare.bench.baselines.feature_fits import fit_kde

SCHEDULE = flare.schedules.cosine(20)
W, V = torch.tensor([0.2, 0.5, -0.1]), torch.tensor([0.4, -0.2, 0.1])
LEVELS = (0.2, 0.6)


class Diagonal(nn.Module):
    def __init__(self, w: Tensor, v: Tensor) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(w), nn.Parameter(v)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.w * x + self.v


class Zeros:
    """No noise; its signs are all +1."""

    def next(self) -> Tensor:
        return torch.zeros(4, 3)


def denoiser(w: Tensor = W) -> flare.Denoiser:
    return flare.Denoiser(Diagonal(w, V))


def levels() -> list:
    return [SCHEDULE.at_fraction(share) for share in LEVELS]


def x(n: int = 4) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1))


def test_sharpness_is_minus_sigma_times_the_trace():
    found = baselines.Sharpness(denoiser(), SCHEDULE, levels=LEVELS, probes=2).score(x())
    by_hand = -sum(at.sigma * (0.2 + 0.5 - 0.1) for at in levels()) / 2
    torch.testing.assert_close(found, torch.full((4,), by_hand), rtol=1e-4, atol=1e-5)


def test_sharpness_is_larger_between_two_modes():
    class Modes(nn.Module):
        """ε̂ of points at ±1: x̂0 = tanh(αx/σ²)."""

        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))

        def forward(self, x, t):
            alpha, sigma = (each[t + 1].float()[:, None] for each in (SCHEDULE.alpha, SCHEDULE.sigma))
            return self.one * (x - alpha * torch.tanh(alpha * x / sigma**2)) / sigma

    method = baselines.Sharpness(flare.Denoiser(Modes()), SCHEDULE, levels=0.3)
    on, between = method.score(torch.tensor([[1.0], [0.0]]))
    at = SCHEDULE.at_fraction(0.3)
    assert on == pytest.approx(-1, abs=0.1)
    # σ²·Δ log p = −1 + α²/σ² at the middle, up to the error of the difference quotient
    assert between == pytest.approx(-1 + (at.alpha / at.sigma) ** 2, rel=0.1)


def test_instability_is_the_squared_norm_of_the_jacobian():
    found = baselines.Instability(denoiser(), SCHEDULE, levels=LEVELS, probes=2).score(x())
    by_hand = sum((1 - at.sigma * w) ** 2 for at in levels() for w in (0.2, 0.5, -0.1)) / 2
    torch.testing.assert_close(found, torch.full((4,), by_hand), rtol=1e-4, atol=1e-5)


def test_eigenscore_sums_the_eigenvalues_of_the_covariance():
    def eigenvalues(at, w) -> list[float]:
        return sorted(((at.sigma / at.alpha) ** 2 * (1 - at.sigma * float(each)) for each in w), reverse=True)

    every = baselines.EigenScore(denoiser(), SCHEDULE, levels=LEVELS, count=3, iterations=1).score(x())
    by_hand = sum(sum(eigenvalues(at, W)) for at in levels())
    torch.testing.assert_close(every, torch.full((4,), by_hand), rtol=1e-4, atol=1e-5)
    steep = torch.tensor([-20.0, 0.1, 0.2])
    first = baselines.EigenScore(denoiser(steep), SCHEDULE, levels=LEVELS, count=1, iterations=12).score(x())
    by_hand = sum(eigenvalues(at, steep)[0] for at in levels())
    torch.testing.assert_close(first, torch.full((4,), by_hand), rtol=1e-3, atol=1e-4)


def test_scoped_has_the_ratio_of_curvature_and_squared_slope():
    method = baselines.Scoped(denoiser(), SCHEDULE, levels=LEVELS, probes=2)
    found = method.features(x(), {}, Zeros())
    for column, at in enumerate(levels()):
        for row, one in enumerate(x()):
            slope = sum((w * at.alpha * float(value) + v) ** 2 for w, value, v in zip(W, one, V, strict=True))
            assert found[row, column].item() == pytest.approx(-at.sigma * 0.6 / float(slope), rel=1e-3)
    real = torch.randn(30, 2, dtype=torch.float64)
    torch.testing.assert_close(method.compare(real, 0)(real), fit_kde(real)(real))


def test_rods_is_the_sharpest_turn_along_the_predicted_noise():
    steps = flare.samplers.ddim(SCHEDULE, 5)
    found = baselines.rods(denoiser(), steps, n=4, shape=(3,), seed=2)
    run = flare.trajectories(denoiser(), steps, n=4, shape=(3,), seed=2)
    states = [frame.x.clone() for frame in run][:-1]  # where the steps after the first begin
    angles = []
    for state, row in zip(states, steps.transitions[1:], strict=True):
        here = W * state + V
        there = W * (state + 0.1 * row.level.sigma * here / here.norm(dim=1, keepdim=True)) + V
        across = torch.linalg.cross(here, there).norm(dim=1)
        angles.append(torch.atan2(across, (here * there).sum(1)))
    torch.testing.assert_close(found.score, torch.stack(angles).amax(0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.samples, run.result.samples)
    straight = baselines.rods(denoiser(torch.zeros(3)), steps, n=4, shape=(3,), seed=2)
    assert float(straight.score.max()) < 1e-5  # the same direction everywhere
    with pytest.raises(ValueError, match="at least 2"):
        baselines.rods(denoiser(), flare.samplers.ddim(SCHEDULE, 1), n=4, shape=(3,))
