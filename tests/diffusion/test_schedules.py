from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from flare import schedules


@pytest.mark.parametrize(
    ("ours", "name", "options"),
    [
        (schedules.cosine(600), "squaredcos_cap_v2", {}),
        (schedules.linear(1000), "linear", {}),
        (schedules.scaled_linear(1000), "scaled_linear", {"beta_start": 0.00085, "beta_end": 0.012}),
    ],
)
def test_tables_equal_those_of_diffusers(ours, name, options):
    from diffusers import DDPMScheduler

    theirs = DDPMScheduler(ours.T, beta_schedule=name, **options)
    torch.testing.assert_close((ours.alpha[1:] ** 2).float(), theirs.alphas_cumprod, rtol=2e-5, atol=1e-7)
    assert ours.times[1:].tolist() == list(range(ours.T))


def test_cosine_has_the_closed_form_below_the_cap():
    T, u = 800, 400 / 800
    closed = math.cos((u + 0.008) / 1.008 * math.pi / 2) / math.cos(0.008 / 1.008 * math.pi / 2)
    assert schedules.cosine(T).at(400).alpha == pytest.approx(closed, rel=1e-12)


def test_tables_are_float64_and_start_at_data():
    for schedule in (schedules.cosine(10), schedules.linear(10), schedules.flow(10)):
        assert schedule.alpha.dtype == schedule.sigma.dtype == torch.float64
        assert (schedule.alpha[0], schedule.sigma[0]) == (1, 0)
        assert (schedule.sigma.diff() > 0).all()


def test_betas_in_the_order_of_sampling_are_named():
    betas = torch.linspace(1e-4, 0.02, 100, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"betas fall from .* pass betas.flip\(0\)"):
        schedules.from_betas(betas.flip(0))
    schedules.from_betas(betas)
    schedules.from_betas([*betas.tolist()[50:], *betas.tolist()[:50]])  # unusual, but not reversed


@given(st.lists(st.floats(1e-5, 0.99), min_size=1, max_size=30))
def test_from_betas_multiplies_up(betas):
    assume(betas[0] <= max(0.9, betas[-1]))  # others look like alpha bars
    schedule = schedules.from_betas(betas)
    running = 1.0
    for t, beta in enumerate(betas, 1):
        running *= 1 - beta
        level = schedule.at(t)
        assert level.alpha**2 == pytest.approx(running, rel=1e-9)
        assert level.alpha**2 + level.sigma**2 == pytest.approx(1)
    assert schedule.variance_preserving


@given(st.integers(1, 50), st.floats(0, 1))
def test_flow_is_exact_between_its_levels(T, s):
    level = schedules.flow(T, time_scale=1000).at(s * T)
    assert level.alpha == pytest.approx(1 - s, abs=1e-12)
    assert level.sigma == pytest.approx(s, abs=1e-12)
    assert level.time == pytest.approx(1000 * s, abs=1e-9)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.cosine(20),
        schedules.linear(20, 1e-3, 0.1),
        schedules.scaled_linear(20),
        schedules.flow(20, 1000.0),
        schedules.from_betas([0.1, 0.2, 1.0]),
        schedules.from_alpha_bars([0.9, 0.5, 0.0]),
    ],
    ids=repr,
)
def test_a_spec_builds_the_same_schedule_through_json(schedule):
    again = schedules.build(json.loads(json.dumps(dict(schedule.spec))))
    assert torch.equal(again.alpha, schedule.alpha)
    assert torch.equal(again.times, schedule.times)
    assert again.continuous == schedule.continuous


def test_log_snr_falls():
    assert (schedules.cosine(100).log_snr.diff() < 0).all()


@pytest.mark.parametrize("make", [schedules.cosine, schedules.linear, schedules.flow])
@pytest.mark.parametrize("T", [0, -3, 2.5, True])
def test_T_must_be_a_positive_integer(make, T):
    with pytest.raises(ValueError, match="T must be an integer of at least 1"):
        make(T)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.from_betas([]), "non-empty"),
        (lambda: schedules.from_betas([0.1, 1.5]), r"\(0, 1\]"),
        (lambda: schedules.from_betas([0.1, math.nan]), "NaN or infinity at t = 2"),
        (lambda: schedules.from_alpha_bars([0.5, 0.6]), "fall strictly"),
        (lambda: schedules.from_betas([0.99, 0.9, 0.1]), r"0.99 … 0.1.*alphas_cumprod.*from_alpha_bars\("),
        (lambda: schedules.from_betas([1.0, 0.999, 0.98]), r"from_betas\(1 - alphas\)"),
        (lambda: schedules.from_alpha_bars([1e-4, 0.01, 0.02]), r"for betas use .*from_betas\("),
        (lambda: schedules.build({"name": "cosin", "T": 5}), "did you mean 'cosine'"),
        (lambda: schedules.build({"name": "cosine", "steps": 5}), "cannot be made"),
        (lambda: schedules.cosine(5).at(6), r"0\.\.5"),
        (lambda: schedules.cosine(5).at(2.5), "discrete"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_schedules_are_registered_by_name_with_a_summary():
    assert set(schedules.SCHEDULES) == {
        "cosine", "edm", "flow", "from_alpha_bars", "from_betas", "linear", "scaled_linear",
    }  # fmt: skip
    assert schedules.SCHEDULES["cosine"] is schedules.cosine
