"""Training pairs: their data, their schedule and their noise levels."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

import flare
from flare.diffusion.noising import LOG_SNR_WIDTH, Noiser, compute_level_probabilities, pairs

SCHEDULE = flare.schedules.cosine(10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_become_tensors_of_the_same_type(dtype):
    data = np.linspace(-1, 1, 12, dtype=dtype).reshape(4, 3)
    made = pairs(data, SCHEDULE, n=5)
    assert torch.equal(made.data, torch.from_numpy(data))
    assert next(made.batches("epsilon")).x.dtype == made.data.dtype == torch.from_numpy(data).dtype


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64])
def test_integers_are_refused(kind):
    data = torch.ones(4, 3, dtype=kind)
    for given in (data, data.numpy()):
        with pytest.raises(TypeError, match=rf"must be floating point, got {kind}"):
            pairs(given, SCHEDULE)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            DDPMScheduler(10),
            r"got DDPMScheduler, a diffusers scheduler; use flare\.from_diffusers\(.*\)\.schedule",
        ),
        (600, r"got int: 600; .*flare\.schedules\.cosine\(600\)"),
        (None, r"got NoneType: None; .*flare\.schedules\.cosine\(600\)"),
        ("cosine", r"got str: 'cosine'; "),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, message):
    with pytest.raises(TypeError, match=message):
        pairs(torch.rand(4, 3), schedule)


SCHEDULES = {
    "cosine": flare.schedules.cosine(600),
    "linear": flare.schedules.linear(1000),
    "flow": flare.schedules.flow(500, time_scale=1000.0),
}


def draw_levels(schedule, n, sampling):
    """Indices 0..T−1 of drawn levels."""
    noiser = Noiser(schedule, "epsilon", level_sampling=sampling)
    times = noiser.draw(torch.zeros(1, 1), n, torch.Generator().manual_seed(0)).t
    return (times[:, None] - schedule.times[1:]).abs().argmin(1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_log_snr_of_drawn_levels_is_normal(name):
    schedule, n = SCHEDULES[name], 20_000
    drawn = schedule.log_snr[draw_levels(schedule, n, "log_snr")]
    normal = NormalDist(0, LOG_SNR_WIDTH)
    for edge in np.arange(-6, 7):
        share = (drawn <= edge).double().mean().item()
        # five standard errors, and the mass of one level
        assert share == pytest.approx(normal.cdf(edge), abs=5 * 0.5 / n**0.5 + 0.005), edge


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_histogram_of_drawn_levels_follows_their_probabilities(name):
    schedule, n, bins = SCHEDULES[name], 20_000, 20
    drawn = draw_levels(schedule, n, "log_snr")
    middles = (schedule.alpha[1:-1] + schedule.alpha[2:]) / (schedule.sigma[1:-1] + schedule.sigma[2:])
    cdf = [1.0, *(NormalDist(0, LOG_SNR_WIDTH).cdf(2 * float(v.log())) for v in middles), 0.0]
    expected = n * (np.array(cdf[:-1]) - np.array(cdf[1:])).reshape(bins, -1).sum(1)
    counts = drawn.bincount(minlength=schedule.T).reshape(bins, -1).sum(1).numpy()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1).all()


def test_level_probabilities_add_up_to_one_and_reach_a_level_without_signal():
    for schedule in (*SCHEDULES.values(), flare.schedules.cosine(1)):
        found = compute_level_probabilities(schedule)
        assert found.sum().item() == pytest.approx(1, abs=1e-12)
        assert (found >= 0).all()
    assert SCHEDULES["flow"].alpha[-1] == 0
    assert compute_level_probabilities(SCHEDULES["flow"])[-1] > 0


def test_uniform_levels_are_the_default_and_keep_their_draws():
    schedule = SCHEDULES["cosine"]
    generator = torch.Generator().manual_seed(0)
    torch.randint(1, (100,), generator=generator)  # the rows
    expected = torch.randint(600, (100,), generator=generator)
    assert torch.equal(draw_levels(schedule, 100, "uniform"), expected)
    default = Noiser(schedule, "epsilon").draw(torch.zeros(1, 1), 100, torch.Generator().manual_seed(0))
    assert torch.equal(default.t, expected)


def test_an_unknown_level_sampling_is_refused():
    with pytest.raises(ValueError, match="unknown level sampling 'logsnr'; did you mean 'log_snr'"):
        Noiser(SCHEDULE, "epsilon", level_sampling="logsnr")
