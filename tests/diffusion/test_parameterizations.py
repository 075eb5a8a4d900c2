from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flare
from flare.diffusion import parameterizations as P

angles = st.floats(0.01, math.pi / 2 - 0.01)
numbers = st.floats(-10, 10)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@given(angle=angles, x0=numbers, noise=numbers)
def test_a_perfect_network_gives_back_x0(prediction, angle, x0, noise):
    alpha, sigma = math.cos(angle), math.sin(angle)
    check_inversion(prediction, alpha, sigma, x0, noise)


@given(s=st.floats(0.0, 1.0), x0=numbers, noise=numbers)
def test_a_perfect_flow_gives_back_x0(s, x0, noise):
    check_inversion("flow", 1 - s, s, x0, noise)


def check_inversion(prediction, alpha, sigma, x0, noise):
    a, s, x, e = (torch.tensor(v, dtype=torch.float64) for v in (alpha, sigma, x0, noise))
    p, q = P.coefficients(prediction, alpha, sigma)
    f = P.target(prediction, a, s, x, e)
    assert (p * (a * x + s * e) + q * f).item() == pytest.approx(x0, abs=1e-10)


@given(angle=angles)
def test_min_snr_weights_are_those_of_the_paper_that_named_them(angle):
    alpha, sigma = (torch.tensor([v], dtype=torch.float64) for v in (math.cos(angle), math.sin(angle)))
    snr = (alpha / sigma) ** 2
    cut = torch.minimum(snr, torch.tensor(5.0))
    torch.testing.assert_close(P.min_snr_weight("epsilon", alpha, sigma), cut / snr)
    torch.testing.assert_close(P.min_snr_weight("sample", alpha, sigma), cut)
    torch.testing.assert_close(P.min_snr_weight("v", alpha, sigma), cut / (snr + 1))


def test_weights_are_finite_at_pure_noise():
    zero, one = torch.zeros(1), torch.ones(1)
    for prediction in P.PREDICTIONS:
        assert torch.isfinite(P.min_snr_weight(prediction, zero, one)).all()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="did you mean 'epsilon'"):
        P.check_prediction("epsilom")
    with pytest.raises(ValueError, match="pure noise"):
        P.coefficients("epsilon", 0.0, 1.0)
    with pytest.raises(ValueError, match="α² \\+ σ² = 1"):
        P.coefficients("v", 0.5, 0.5)
    with pytest.raises(ValueError, match="α \\+ σ = 1"):
        P.coefficients("flow", 0.6, 0.8)


@pytest.mark.parametrize(("theirs", "ours"), [("v_prediction", "v"), ("x0", "sample"), ("noise", "epsilon")])
def test_names_of_others_are_taken(theirs, ours):
    assert P.check_prediction(theirs) == ours
    assert flare.Denoiser(torch.nn.Linear(1, 1), theirs).prediction == ours
