"""Training pairs: their data, their schedule and their noise levels."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

import flare
from flare.diffusion.noising import LOG_SNR_WIDTH, Noiser, compute_level_probabilities, pairs, split

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
            r"got DDPMScheduler; use flare\.from_diffusers\(.*\)\.schedule",
        ),
        (600, r"got int; .*flare\.schedules\.cosine\(600\)"),
        (None, r"got NoneType; .*flare\.schedules\.cosine\(600\)"),
        ("cosine", "got str; "),
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


@pytest.mark.parametrize("given", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
def test_a_split_divides_the_rows_once_each(given):
    rows = np.arange(40.0).reshape(20, 2)
    train, held_out = split(given(rows), 0.25, seed=3)
    assert train.shape == (15, 2)
    assert held_out.shape == (5, 2)
    assert sorted([*train[:, 0].tolist(), *held_out[:, 0].tolist()]) == rows[:, 0].tolist()
    again = split(given(rows), 0.25, seed=3)
    assert torch.equal(train, again[0])
    assert torch.equal(held_out, again[1])
    assert not torch.equal(held_out, split(given(rows), 0.25, seed=4)[1])
    labels, held_labels = split(torch.arange(20), 0.25, seed=3)
    assert (2 * labels).tolist() == train[:, 0].tolist(), "conditions are split in the same way"
    assert (2 * held_labels).tolist() == held_out[:, 0].tolist()


def test_training_pairs_have_no_held_out_row():
    data = torch.arange(60.0).reshape(30, 2)
    train, held_out = split(data, 0.2, seed=0)
    clean = flare.schedules.from_betas(torch.full((2,), 1e-12))  # x_t is x_0 up to rounding
    seen, unseen = (
        {round(x[0].item()) for b in pairs(part, clean, n=500).batches("epsilon", torch.float64) for x in b.x}
        for part in (train, held_out)
    )
    assert not seen & unseen
    assert unseen == {round(v) for v in held_out[:, 0].tolist()}


@pytest.mark.parametrize("fraction", [1e-6, 0.999999])
def test_both_parts_of_a_split_have_a_row(fraction):
    assert all(len(part) >= 1 for part in split(torch.rand(3, 2), fraction))


@pytest.mark.parametrize(
    ("data", "fraction", "message"),
    [
        (torch.rand(3, 2), 0.0, r"fraction must lie in \(0, 1\), got 0.0"),
        (torch.rand(3, 2), 1, r"fraction must lie in \(0, 1\), got 1"),
        (torch.rand(3, 2), float("nan"), r"fraction must lie in \(0, 1\), got nan"),
        (torch.rand(1, 2), 0.1, r"at least 2 rows, .* got shape \(1, 2\)"),
        (torch.tensor(1.0), 0.1, r"at least 2 rows, .* got shape \(\)"),
    ],
)
def test_what_cannot_be_split_is_refused(data, fraction, message):
    with pytest.raises(ValueError, match=message):
        split(data, fraction)
