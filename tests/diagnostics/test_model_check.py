"""A model that does not fit its data is told so, with the likely cause; one that does is left in peace."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import flare
from flare.diagnostics.denoising_errors import FRACTIONS, excess_of, spectrum_of
from flare.diagnostics.model_check import compare_with_data

T = 100


class Net(nn.Module):
    """An MLP whose time is t/T; `stretch` is for networks that expect other times than they get."""

    def __init__(self, stretch=1.0):
        super().__init__()
        self.stretch = stretch
        self.layers = nn.Sequential(
            nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
        )

    def forward(self, x, t):
        time = self.stretch * t[:, None].to(x.dtype) / T
        return self.layers(torch.cat([x, time], dim=1))


def ring(n=3000):
    """Points on a circle."""
    g = torch.Generator().manual_seed(0)
    angle, radius = 2 * math.pi * torch.rand(n, generator=g), 1 + 0.15 * torch.randn(n, generator=g)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def trained(data, schedule, steps, prediction="epsilon", stretch=1.0):
    torch.manual_seed(0)
    net = Net(stretch)
    config = flare.training.TrainConfig(
        steps, learning_rate=5e-3, warmup=20, ema=0.98, weighting="uniform", weight_decay=0.0
    )
    run = flare.training.Training(net, data, schedule, config, prediction)
    for _ in range(steps):
        run.step()
    net.load_state_dict(run.weights())
    return net


@pytest.fixture(scope="module")
def data():
    return ring()


@pytest.fixture(scope="module")
def schedule():
    return flare.schedules.cosine(T)


@pytest.fixture(scope="module")
def net(data, schedule):
    return trained(data, schedule, 1000)


@pytest.mark.parametrize("name", flare.bench.shipped.NAMES)
def test_the_shipped_models_fit(name):
    model = flare.bench.load(name)
    found = flare.check_model(model.denoiser, model.data, model.schedule)
    assert found.problems == []
    assert found.verdict == "The model fits the data."
    assert found.excess < 0.05
    assert found.samples.far < 0.25
    assert json.loads(json.dumps(found.facts))["samples"]["n"] == 128


def test_a_trained_network_fits_whatever_its_dtype_and_the_same_seed_finds_the_same(net, data, schedule):
    found = flare.check_model(flare.Denoiser(net), data, schedule)
    assert found.problems == []
    assert found == flare.check_model(flare.Denoiser(net), data, schedule)
    wide = Net().double()
    wide.load_state_dict(net.state_dict())
    assert flare.check_model(flare.Denoiser(wide), data, schedule).excess == pytest.approx(
        found.excess, abs=1e-3
    )


def test_a_flow_fits_and_its_time_scale_is_recognized(data):
    flow = flare.schedules.flow(50)
    net = trained(data, flow, 500, "flow", stretch=T)
    assert flare.check_model(flare.Denoiser(net, "flow"), data, flow).problems == []
    net.stretch = T / 1000
    found = flare.check_model(flare.Denoiser(net, "flow"), data, flow)
    assert "expect s times 1000" in found.verdict


@pytest.mark.parametrize(
    ("prediction", "stretch", "levels", "change", "cause"),
    [
        ("v", 1, T, None, "seems to predict epsilon, not v"),
        ("sample", 1, T, None, "seems to predict epsilon, not sample"),
        ("epsilon", T, T, None, "seems to expect t in [0, 1], but receives 0..99"),
        ("epsilon", 1, 1000, None, "trained with about 100 noise levels (between 50 and 200), not 1000"),
        ("epsilon", 1, T, lambda x: 30 * x + 200, "seems to be trained on data s"),
        ("epsilon", 1, T, lambda x: (100 * x).round(), "seems to be trained on data s"),
    ],
)
def test_each_wrong_assumption_is_named(net, data, prediction, stretch, levels, change, cause):
    other = Net(stretch)
    other.load_state_dict(net.state_dict())
    found = flare.check_model(
        flare.Denoiser(other, prediction),
        data if change is None else change(data),
        flare.schedules.cosine(levels),
    )
    assert cause in found.problems[0]
    assert found.excess > 0.2
    assert "Train it longer" not in found.verdict


@pytest.mark.parametrize("name", ["grid", "sines"])
@pytest.mark.parametrize(("factor", "size"), [(0.5, "twice"), (2.0, "half")])
def test_a_wrong_range_of_betas_is_named_whatever_the_seed(name, factor, size):
    model = flare.bench.load(name)
    other = flare.schedules.from_alpha_bars(model.schedule.alpha[1:] ** (2 * factor))
    for seed in range(3):
        assert flare.check_model(model.denoiser, model.data, model.schedule, seed=seed).problems == []
        (problem,) = flare.check_model(model.denoiser, model.data, other, seed=seed).problems
        assert f"trained with betas about {size} as large" in problem


@pytest.mark.parametrize("end", [0.02, 0.04])
def test_the_two_usual_ends_of_a_linear_schedule_are_told_apart(data, end):
    ends = {value: flare.schedules.linear(1000, end=value, time_scale=T / 1000) for value in (0.02, 0.04)}
    denoiser = flare.Denoiser(trained(data, ends[end], 800, "sample"), "sample")
    assert flare.check_model(denoiser, data, ends.pop(end)).problems == []
    (other,) = ends.values()
    size = "half" if end == 0.02 else "twice"
    assert f"trained with betas about {size} as large" in flare.check_model(denoiser, data, other).verdict


def test_a_wrong_time_and_a_wrong_prediction_at_once_are_named(net, data, schedule):
    other = Net(stretch=T)
    other.load_state_dict(net.state_dict())
    (problem, far) = flare.check_model(flare.Denoiser(other, "v"), data, schedule).problems
    assert "expect t in [0, 1], but receives 0..99" in problem
    assert "set the schedule's time to fraction (t/T), or its time_scale to 1/100" in problem
    assert "also seems to predict epsilon, not v" in problem
    assert "no score of the model" not in far  # the model may be right


def test_a_network_that_is_far_off_is_not_called_untrained(net, data, schedule):
    class Loud(Net):
        def forward(self, x, t):
            return 10 + 5 * super().forward(x.flip(1), t)

    loud = Loud()
    loud.load_state_dict(net.state_dict())
    (problem, _) = flare.check_model(flare.Denoiser(loud), data, schedule).problems
    assert "another time convention" in problem
    assert "untrained" not in problem


def test_an_untrained_network_knows_nothing(data, schedule):
    found = flare.check_model(flare.Denoiser(Net()), data, schedule)
    assert "has learned next to nothing" in found.problems[0]
    assert "untrained weights" in found.problems[0]
    assert found.excess == pytest.approx(1, abs=0.3)


def test_an_underfit_model_is_told_that_no_score_mends_it(data, schedule):
    found = flare.check_model(flare.Denoiser(trained(data, schedule, 90)), data, schedule)
    assert "no score of the model can correct that" in found.problems[-1]
    assert found.samples.far > 0.4


def test_the_linear_reference_is_reached_by_the_best_linear_denoiser(schedule):
    """The posterior mean of Gaussian data is linear: its errors are the reference's."""
    torch.manual_seed(0)
    std = torch.tensor([2.0, 0.5, 0.1])

    class Wiener(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(()))

        def forward(self, x, t):
            alpha, sigma = (v[1:][t].float()[:, None] for v in (schedule.alpha, schedule.sigma))
            return self.one * sigma * x / (alpha**2 * std**2 + sigma**2)

    gaussian = std * torch.randn(4000, 3)
    found = flare.check_model(flare.Denoiser(Wiener()), gaussian, schedule)
    assert abs(found.excess) < 0.05
    assert len(found.levels) == len(FRACTIONS)
    assert excess_of([flare.diagnostics.model_check.LevelError(0, 1.0, 0.2, 1.0)]) == pytest.approx(1)


def test_the_spectrum_is_that_of_the_covariance_and_honest_with_few_samples():
    torch.manual_seed(0)
    std = torch.tensor([3.0, 1.0, 0.2])
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    data = (std * torch.randn(20_000, 3)) @ turn.T
    torch.testing.assert_close(spectrum_of(data, 0), std.double() ** 2, rtol=0.15, atol=0)
    few = torch.randn(40, 200)
    spread = spectrum_of(few, 0)
    assert spread.shape == (200,)
    assert spread.min() > 0.5, "no direction is known better than the data tells"
    assert spread.mean() == pytest.approx(1, rel=0.15)


def test_samples_are_compared_with_the_data(data):
    same = compare_with_data(ring(6000)[3000:3200], data)
    assert same.problem is None
    assert same.far < 0.1
    inside = compare_with_data(0.2 * data[:200], data)
    assert inside.far > 0.9
    assert inside.energy_distance > 3 * inside.energy_reference
    assert "100% of 200" in inside.problem
    assert compare_with_data(data[:5], data[:10]) is None
    apart = compare_with_data(0.2 * data[:200].double() + 2**27, data.double() + 2**27)
    for name in ("far", "energy_distance", "energy_reference"):
        assert getattr(apart, name) == pytest.approx(getattr(inside, name), abs=1e-6)


def test_odd_data_and_odd_networks_have_an_answer(net, data, schedule):
    constant = flare.check_model(flare.Denoiser(net), torch.ones(50, 2), schedule)
    assert "the same" in constant.verdict
    small = flare.check_model(flare.Denoiser(net), data[:8], schedule)
    assert small.samples is None

    class Torn(Net):
        def forward(self, x, t):
            return super().forward(x, t) * torch.nan

    torn = flare.check_model(flare.Denoiser(Torn()), data, schedule)
    assert torn.excess == math.inf
    assert "cannot be sampled" in torn.verdict or "NaN" in torn.verdict
    with pytest.raises(ValueError, match="at least 2 axes"):
        flare.check_model(flare.Denoiser(net), torch.ones(3), schedule)


def test_conditions_belong_to_their_samples(net, data, schedule):
    class Shifted(Net):
        """The ring moved by its condition."""

        def forward(self, x, t, shift):
            alpha = schedule.alpha[1:][t].float()[:, None]
            return super().forward(x - alpha * shift, t)

    shifted = Shifted()
    shifted.load_state_dict(net.state_dict())
    shift = 5 * torch.arange(len(data))[:, None].float().sin().repeat(1, 2)
    found = flare.check_model(flare.Denoiser(shifted), data + shift, schedule, cond={"shift": shift})
    assert found.excess < 0.1


def test_samples_are_compared_with_held_out_data(net, data, schedule):
    checked = flare.check_model(flare.Denoiser(net), data, schedule)
    fresh = flare.check_model(flare.Denoiser(net), data, schedule, held_out=data.flip(0)[:200])
    assert fresh.problems == []
    assert fresh.excess == checked.excess
    elsewhere = flare.check_model(flare.Denoiser(net), data, schedule, held_out=data + 3)
    assert "samples are far from the data" in elsewhere.problems[0]
    few = flare.check_model(flare.Denoiser(net), data, schedule, held_out=data[:19] + 3)
    assert few == checked  # too few to compare with


def test_the_sampler_is_blamed_if_the_same_samples_are_fine_with_ddpm(net, data, schedule):
    coarse = flare.samplers.ddim(schedule, 2, clip=1.5)
    found = flare.check_model(flare.Denoiser(net), data, schedule, steps=coarse)
    (problem,) = found.problems
    assert "The sampler is at fault, not the network" in problem
    assert "drawn with ddpm in 100 steps instead of ddim in 2" in problem
    assert "Train it longer" not in problem
    assert found.limited == {problem: ["ddim", 100]}


def test_a_network_that_no_sampler_mends_is_blamed_itself(data, schedule):
    found = flare.check_model(flare.Denoiser(trained(data, schedule, 90)), data, schedule)
    assert "sampler is at fault" not in found.verdict
    assert found.limited == {found.problems[-1]: []}


def wrap(call, inner):
    """A module that calls another one in its own way."""

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x, t):
            return call(self.inner, x, t)

    return Wrapped()


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (lambda net, x, t: -net(x, 1 - t), "run time backward, with noise at t = 0, and to predict x_0 − ε"),
        (lambda net, x, t: net(x, 1 - t), "run time backward, with noise at t = 0: give a module"),
        (lambda net, x, t: -net(x, t), "predict x_0 − ε, not ε − x_0"),
    ],
)
def test_a_flow_that_runs_backward_is_recognized(data, flow_net, call, cause):
    wrong = wrap(call, flow_net)
    found = flare.check_model(flare.Denoiser(wrong, "flow"), data, flare.schedules.flow(50))
    assert cause in found.problems[0]


@pytest.fixture(scope="module")
def flow_net(data):
    return trained(data, flare.schedules.flow(50), 500, "flow", stretch=T)


def test_discrete_time_that_runs_backward_is_recognized(net, data, schedule):
    backward = wrap(lambda net, x, t: net(x, T - 1 - t), net)
    found = flare.check_model(flare.Denoiser(backward), data, schedule)
    assert "run time backward, with noise at t = 0: give a module that returns net(x, 99" in found.verdict


@pytest.mark.parametrize(("trained_on", "given"), [("linear", "cosine"), ("cosine", "linear")])
def test_cosine_and_linear_are_told_apart(data, trained_on, given):
    named = {"linear": flare.schedules.linear, "cosine": flare.schedules.cosine}
    net = trained(data, named[trained_on](1000, time_scale=T / 1000), 800, "sample")
    found = flare.check_model(flare.Denoiser(net, "sample"), data, named[given](1000, time_scale=T / 1000))
    assert f"trained on the {trained_on} schedule, not {given}" in found.verdict


@pytest.fixture(scope="module")
def edm_net():
    """The ideal network F of Gaussian data with σ = (2, 0.5), preconditioned with σ_data = 1; takes σ."""

    class Ideal(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(()))

        def forward(self, x, t):
            sigma = t[:, None]
            total = (sigma**2 + 1).sqrt()
            # x is scaled already: the clean mean is s²/(s²+σ²)·x with s = (2, 0.5)
            size = torch.tensor([2.0, 0.5]) ** 2
            clean = size / (size + sigma**2) * x * total
            return self.one * (clean - x * total / (sigma**2 + 1)) / (sigma / total)

    return Ideal()


def test_edm_conventions_are_told_apart(edm_net):
    torch.manual_seed(0)
    data, schedule = torch.tensor([2.0, 0.5]) * torch.randn(2000, 2), flare.schedules.edm()
    right = flare.check_model(flare.Denoiser(edm_net, "edm_sigma:1.0"), data, schedule)
    assert abs(right.excess) < 0.1
    found = flare.check_model(flare.Denoiser(edm_net, "edm_sigma:0.1"), data, schedule)
    assert "trained with σ_data = 1, not 0.1: set the prediction to edm_sigma:1.0" in found.verdict


@pytest.mark.parametrize(("given", "expected"), [("log_sigma", "σ"), ("sigma", "log(σ)/4")])
def test_sigma_and_its_logarithm_are_told_apart(edm_net, given, expected):
    torch.manual_seed(0)
    size = torch.tensor([2.0, 0.5])
    data = size * torch.randn(2000, 2)

    def ideal(net, x, t):
        sigma = (t if given == "log_sigma" else (4 * t).clamp(max=20).exp())[:, None]
        return net.one * x * size**2 / (size**2 + sigma**2)

    denoiser = flare.Denoiser(wrap(ideal, edm_net), "sample")
    found = flare.check_model(denoiser, data, flare.schedules.edm(time=given))
    assert f"seems to expect {expected}: set the schedule's time to" in found.verdict
