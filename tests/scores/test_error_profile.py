"""The error profile worked out by hand, for a network whose output is a constant."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import flare


class Constant(nn.Module):
    """c + label, whatever the input."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, x, t, label=None):
        out = self.value.expand(x.shape)
        return out if label is None else out + label.view(-1, *[1] * (x.ndim - 1))


SCHEDULE = flare.schedules.cosine(20)
X = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [3.0, 3.0]], dtype=torch.float64)


def test_the_error_of_a_constant_is_its_squared_distance():
    """A network that predicts x_0 = (2, 2) is wrong by ‖x − (2, 2)‖² at all levels and noises."""
    denoiser = flare.Denoiser(Constant(2.0), "sample")
    ours = flare.score(denoiser, None, SCHEDULE, X)
    expected = [math.log(1.0), math.log(9 + 2.25), math.log(2.0)]
    assert ours.tolist() == pytest.approx(expected, abs=1e-12)


def test_noises_are_averaged_before_the_logarithm_and_levels_after_it():
    """For f = 0 and target ε − x of a flow: errors ‖ε_k − x‖² of the shared noises ε_k."""
    denoiser = flare.Denoiser(Constant(0.0), "flow")
    seed = flare.core.noise_streams.mix_seed(5, flare.core.noise_streams.SHARED_STREAM)
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(seed)).double()
    options = {"score": "error_profile", "levels": (0.2, 0.7), "repeats": 2, "seed": 5}
    ours = flare.score(denoiser, None, flare.schedules.flow(20), X, **options)
    for x, value in zip(X, ours.tolist(), strict=True):
        errors = [sum((e - a) ** 2 for e, a in zip(row, x.tolist(), strict=True)) for row in noise.tolist()]
        low, high = (errors[0] + errors[1]) / 2, (errors[2] + errors[3]) / 2
        assert value == pytest.approx((math.log(low) + math.log(high)) / 2, rel=1e-9)


def test_the_profile_without_condition_is_subtracted():
    """The label 1 moves the constant to (3, 3); label 0 leaves it at (2, 2)."""
    denoiser = flare.Denoiser(Constant(2.0), "sample")
    labels = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    given = {"cond": {"label": labels}, "unconditional": {"label": torch.zeros(3)}}
    ours = flare.score(denoiser, None, SCHEDULE, X, batch_size=2, **given)
    expected = [math.log(5.0 / 1.0), math.log((16 + 6.25) / (9 + 2.25)), 0.0]
    assert ours.tolist() == pytest.approx(expected, abs=1e-12)
    plain = flare.score(denoiser, None, SCHEDULE, X, unconditional={})
    assert plain.tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_samples_are_scored_without_a_posterior():
    denoiser = flare.Denoiser(Constant(2.0), "sample")
    steps = flare.samplers.ddim(SCHEDULE, 4)
    start = torch.randn(5, 2, dtype=torch.float64)
    drawn = flare.sample(denoiser, steps, start=start, batch_size=2).samples
    score = flare.score(denoiser, None, SCHEDULE, drawn, score="error_profile", batch_size=2)
    # all samples are (2, 2), where the error is 0 up to rounding
    assert (score < math.log(1e-20)).all()
    assert score.isfinite().all()
    with pytest.raises(ValueError, match=r"needs no sampler: .* flare.score\(..., score='error_profile'\)"):
        flare.sample(denoiser, steps, start=start, score="error_profile")
    with pytest.raises(ValueError, match="score='trace' needs a posterior, got None; fit one, or use"):
        flare.score(denoiser, None, SCHEDULE, X, score="trace")


def test_the_conditions_of_a_part_are_its_own():
    denoiser = flare.Denoiser(Constant(2.0), "sample")
    steps = flare.samplers.ddim(SCHEDULE, 3, clip=1.0)
    labels = torch.arange(4.0, dtype=torch.float64)
    options = {"first": 10, "batch_size": 3, "cond": {"label": labels}}
    drawn = flare.sample(denoiser, steps, n=4, shape=(2,), **options).samples
    score = flare.score(denoiser, None, SCHEDULE, drawn, score="error_profile", **options)
    # all samples are clipped to (1, 1); the network says 2 + label
    expected = [math.log(2 * (1 + label) ** 2) for label in range(4)]
    assert score.tolist() == pytest.approx(expected, rel=1e-6)
