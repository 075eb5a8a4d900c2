"""EDM: the schedule, the preconditioning and Heun's method, against references that are written out here."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import TinyNet
from torch import nn

import flare
from flare import samplers, schedules
from flare.bench import baselines
from flare.diffusion import parameterizations
from flare.diffusion.levels import SIGMA_GRIDS
from flare.diffusion.schedules import Summary
from flare.posteriors import curvature
from flare.propagation.trajectory import Plain, walk

SHAPE = (3,)
F64 = torch.float64


class Given:
    """Noise from a list."""

    def __init__(self, draws):
        self.draws = iter(draws)

    def next(self):
        return next(self.draws)


class Preconditioned(nn.Module):
    """D(x, σ) = c_skip·x + c_out·F(c_in·x, log(σ)/4), as EDM writes it."""

    def __init__(self, inner, data):
        super().__init__()
        self.inner, self.data = inner, data

    def forward(self, x, sigma):
        c_noise, sigma = sigma.log() / 4, sigma.view(-1, *[1] * (x.ndim - 1))
        total = sigma**2 + self.data**2
        c_skip, c_out, c_in = self.data**2 / total, sigma * self.data / total.sqrt(), 1 / total.sqrt()
        return c_skip * x + c_out * self.inner(c_in * x, c_noise)


def algorithm_1(D, x, sigmas):
    """Algorithm 1 of EDM with σ(t) = t and s(t) = 1: Heun's steps through σ_0 > … > σ_{N−1}, then 0."""
    states = []
    for t, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        d = (x - D(x, t)) / t
        euler = x + (after - t) * d
        if after != 0:
            d_after = (euler - D(euler, after)) / after
            x = x + (after - t) * (d / 2 + d_after / 2)
        else:
            x = euler
        states.append(x)
    return states


def algorithm_2(D, x, sigmas, noises, churn, low, high, factor):
    """Algorithm 2 of EDM: the same with noise added before each step."""
    states = []
    for t, after, noise in zip(sigmas, [*sigmas[1:], 0.0], noises, strict=True):
        gamma = min(churn / len(sigmas), math.sqrt(2) - 1) if low <= t <= high else 0
        hat = t + gamma * t
        x = x + math.sqrt(hat**2 - t**2) * factor * noise
        d = (x - D(x, hat)) / hat
        euler = x + (after - hat) * d
        if after != 0:
            d_after = (euler - D(euler, after)) / after
            x = x + (after - hat) * (d / 2 + d_after / 2)
        else:
            x = euler
        states.append(x)
    return states


def karras(n, low=0.002, high=80.0, rho=7.0):
    """σ_i = (σ_max^(1/ρ) + i/(N−1)·(σ_min^(1/ρ) − σ_max^(1/ρ)))^ρ."""
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [(a + i / (n - 1) * (b - a)) ** rho for i in range(n)]


def network(data=0.5):
    torch.manual_seed(0)
    net = TinyNet(SHAPE, scale=2.0).double()
    module = Preconditioned(net, data)

    def D(x, sigma):
        with torch.no_grad():
            return module(x, torch.full((len(x),), sigma, dtype=F64))

    return net, module, D


def steps_of(frames, schedule_steps):
    """The states after both rows of each step."""
    return [frame.x for frame, row in zip(frames, schedule_steps.transitions, strict=True) if ends(row)]


def ends(row):
    """Whether a row is the last of its step: a corrector, with two predictions, or the step to data."""
    return len(row.B) == 2 or row.A == 0


@pytest.mark.parametrize("n", [2, 5, 18])
@pytest.mark.parametrize("data", [0.5, 1.3])
def test_heun_is_algorithm_1_of_edm(n, data):
    net, _, D = network(data)
    schedule = schedules.edm()
    steps = samplers.heun(schedule, n)
    assert len(steps) == 2 * n - 1
    x = 80 * torch.randn(4, *SHAPE, dtype=F64)
    denoiser = flare.Denoiser(net, f"edm:{data}")
    frames = list(walk(steps.rows(denoiser.prediction), Plain(denoiser), x, Given([]), {}))
    for ours, theirs in zip(steps_of(frames, steps), algorithm_1(D, x, karras(n)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    assert steps.start == 80


@pytest.mark.parametrize("churn", [(40, 0.05, 50, 1.003), (3, 0.0, math.inf, 1.0), (0, 0.0, math.inf, 1.0)])
def test_heun_with_churn_is_algorithm_2_of_edm(churn):
    n = 9
    net, _, D = network()
    sigmas, noises = karras(n), list(torch.randn(n, 4, *SHAPE, dtype=F64))
    x = 80 * torch.randn(4, *SHAPE, dtype=F64)
    theirs = algorithm_2(D, x, sigmas, noises, *churn)
    steps = samplers.heun(schedules.edm(), n, churn=samplers.Churn(*churn))

    def raised(sigma):
        """The standard deviation of the noise before a step from σ."""
        amount, low, high, factor = churn
        gamma = min(amount / n, math.sqrt(2) - 1) if low <= sigma <= high else 0
        return factor * sigma * math.sqrt((1 + gamma) ** 2 - 1)

    # x_T already has the noise before the first step
    assert steps.start == pytest.approx(math.hypot(80, raised(80)))
    start = x + raised(80) * noises[0]
    used = [noise for sigma, noise in zip(sigmas[1:], noises[1:], strict=True) if raised(sigma) > 0]
    frames = list(walk(steps.rows("edm"), Plain(flare.Denoiser(net, "edm")), start, Given(used), {}))
    # our state has the noise before the next step, too; theirs gets it there
    added = [raised(sigma) * noise for sigma, noise in zip(sigmas[1:], noises[1:], strict=True)]
    for ours, state, noise in zip(steps_of(frames, steps), theirs, [*added, 0.0], strict=True):
        torch.testing.assert_close(ours, state + noise, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("grid", SIGMA_GRIDS)
def test_euler_walks_the_grids_of_sigma(grid):
    n = 7
    net, _, D = network()
    sigmas = {
        "karras": karras(n),
        "exponential": [80 * (0.002 / 80) ** (i / (n - 1)) for i in range(n)],
        "uniform": [80 + i / (n - 1) * (0.002 - 80) for i in range(n)],
    }[grid]
    schedule = schedules.edm()
    levels = [*map(schedule.at_sigma, schedule.sigmas(n, grid)), schedule.at(0)]
    steps = samplers.euler(schedule, list(pairwise(levels)))
    assert grid != "karras" or steps.transitions == samplers.euler(schedule, n).transitions
    assert [row.level.sigma for row in steps.transitions] == pytest.approx(sigmas, rel=1e-9)
    x = x_T = 80 * torch.randn(4, *SHAPE, dtype=F64)
    for here, there in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        x = x + (there - here) * (x - D(x, here)) / here
    denoiser = flare.Denoiser(net, "edm")
    *_, last = walk(steps.rows("edm"), Plain(denoiser), x_T, Given([]), {})
    torch.testing.assert_close(last.x, x, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("clip", [None, 0.7])
def test_heun_solves_a_flow_in_s(clip):
    torch.manual_seed(0)
    net = TinyNet(SHAPE, scale=2.0).double()
    x = x_T = torch.randn(4, *SHAPE, dtype=F64)

    def slope(x, s):
        with torch.no_grad():
            v = net(x, torch.full((len(x),), s, dtype=F64))
        clean = x - s * v
        return (x - (clean if clip is None else clean.clamp(-clip, clip))) / s

    levels = [1.0, 0.8, 0.5, 0.1]
    for s, after in zip(levels, [*levels[1:], 0.0], strict=True):
        v = slope(x, s)
        euler = x + (after - s) * v
        x = euler if after == 0 else x + (after - s) * (v + slope(euler, after)) / 2
    steps = samplers.heun(schedules.flow(10), [10 * s for s in levels], clip=clip)
    *_, last = walk(steps.rows("flow"), Plain(flare.Denoiser(net, "flow")), x_T, Given([]), {})
    torch.testing.assert_close(last.x, x)


@pytest.mark.parametrize("clip", [None, 0.8])
@pytest.mark.parametrize("make", [samplers.ddim, samplers.dpmpp_2m, samplers.euler, samplers.heun])
def test_preconditioning_as_a_prediction_is_preconditioning_inside_the_network(make, clip):
    """The same samples and the same epistemic variance, since both have the same parameters."""
    net, module, _ = network()
    steps = make(schedules.edm(), 6, clip=clip)
    results = []
    for denoiser in (flare.Denoiser(net, "edm"), flare.Denoiser(module, "sample")):
        subset = flare.subsets.everything(denoiser)
        statistics = curvature.Statistics(1, 1, 1, 1.0)
        origin = curvature.Origin.of(denoiser, subset, statistics)
        eye = torch.eye(subset.size, dtype=F64)
        posterior = flare.posteriors.Dense(origin, 1.0, 1.0, torch.ones(subset.size, dtype=F64), eye)
        results.append(
            flare.sample(denoiser, steps, posterior, n=4, shape=SHAPE, directions="exact",
                         score=["trace", "off_manifold", "residual_variance"], levels=[0.1, 0.5])
        )  # fmt: skip
    ours, theirs = results
    torch.testing.assert_close(ours.samples, theirs.samples, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-6, atol=1e-9)
    for name in ours.scores:
        torch.testing.assert_close(ours.scores[name], theirs.scores[name], rtol=1e-6, atol=1e-9)


class TakesSigma(nn.Module):
    """An inner model of k-diffusion: called with σ, of which it takes the logarithm itself."""

    def __init__(self):
        super().__init__()
        self.net = TinyNet(SHAPE, scale=2.0).double()

    def forward(self, scaled, sigma):
        return self.net(scaled, sigma.log() / 4)


class KDenoiser(nn.Module):
    """The wrapper of k-diffusion: it scales the input and the output, and passes σ on."""

    def __init__(self, inner_model, sigma_data):
        super().__init__()
        self.inner_model, self.sigma_data = inner_model, sigma_data

    def forward(self, x, sigma):
        s, d = sigma.view(-1, *[1] * (x.ndim - 1)), self.sigma_data
        out = self.inner_model(x / (s**2 + d**2).sqrt(), sigma)
        return out * s * d / (s**2 + d**2).sqrt() + x * d**2 / (s**2 + d**2)


@pytest.mark.parametrize("data", [0.5, 1.0])
def test_an_inner_model_of_k_diffusion_receives_sigma(data):
    """Its x̂0, samples and scores are those of the wrapper, whose output is x̂0."""
    torch.manual_seed(0)
    inner, schedule = TakesSigma(), schedules.edm()
    own, whole = flare.Denoiser(inner, f"edm_sigma:{data}"), KDenoiser(inner, data)
    x = torch.randn(6, *SHAPE, dtype=F64)
    for sigma in (0.01, 0.5, 1.0, 80.0):
        p, q = parameterizations.coefficients(own.prediction, 1.0, sigma)
        time = torch.full((6,), sigma, dtype=F64)
        with torch.no_grad():
            torch.testing.assert_close(p * x + q * own(x, time), whole(x, time))
    wrapped = flare.Denoiser(whole, "sample")
    for make in (
        lambda d: flare.sample(d, samplers.heun(schedule, 6), n=4, shape=SHAPE, seed=0).samples,
        lambda d: baselines.DenoisingError(d, schedule).score(x),
    ):
        torch.testing.assert_close(make(own), make(wrapped), rtol=1e-6, atol=1e-8)
    scorer = flare.fit(own, torch.randn(60, *SHAPE), schedule, pairs=50, check=False)
    assert (scorer.score(x).p_value > 0).all()


@given(st.floats(1e-3, 100), st.floats(0.1, 3), st.floats(-5, 5), st.floats(-3, 3))
def test_a_perfect_preconditioned_network_gives_back_x0(sigma, data, x0, noise):
    prediction = parameterizations.check_prediction(f"edm:{data}")
    one, s, clean, eps = (torch.tensor(v, dtype=F64) for v in (1.0, sigma, x0, noise))
    p, q = parameterizations.coefficients(prediction, 1.0, sigma)
    f = parameterizations.target(prediction, one, s, clean, eps)
    assert (p * (clean + s * eps) + q * f).item() == pytest.approx(x0, rel=1e-9, abs=1e-7)
    # the weight of x̂0's squared error is min(SNR, 5)
    weight = parameterizations.min_snr_weight(prediction, one, s)
    assert weight.item() / q**2 == pytest.approx(min(1 / sigma**2, 5.0))


def test_sigma_data_is_part_of_the_prediction():
    net = TinyNet(SHAPE)
    assert flare.Denoiser(net, "edm:0.5").prediction == "edm"
    fingerprints = [
        flare.Denoiser(net, name).fingerprint()["structure"]
        for name in ("edm", "edm:1.0", "edm_sigma", "sample")
    ]
    assert len(set(fingerprints)) == 4
    for wrong in ("edm:0", "edm:-1", "edm:x", "edm:", "v:1.0", "edm:nan"):
        with pytest.raises(ValueError, match=r"such as 'edm:1\.0'"):
            flare.Denoiser(net, wrong)


# --- the schedule


def test_levels_are_the_quantiles_of_the_training_distribution():
    from scipy.stats import truncnorm

    schedule = schedules.edm(0.01, 20.0, T=50, training=(-0.4, 1.0))
    low, high = ((math.log(s) + 0.4) / 1.0 for s in (0.01, 20.0))
    law = truncnorm(low, high, loc=-0.4, scale=1.0)
    for t in (1, 2, 7.5, 25, 49, 50):
        level = schedule.at(t)
        assert level.alpha == 1
        assert level.sigma == pytest.approx(math.exp(law.ppf((t - 1) / 49)), rel=1e-7)
        assert level.time == level.sigma
        again = schedule.at_sigma(level.sigma)
        assert (again.sigma, again.time) == (level.sigma, level.time)
    assert schedule.sigma[[0, 1, -1]].tolist() == [0.0, 0.01, 20.0]
    assert (schedule.sigma.diff() > 0).all()
    assert schedule.at(0.5).sigma == pytest.approx(0.005)
    assert schedule.variance_exploding
    assert not schedule.variance_preserving


def test_training_pairs_have_the_levels_of_training():
    """log σ ~ N(−1.2, 1.2²), as EDM trains; the network receives σ."""
    pairs = flare.noising.pairs(torch.zeros(10, 4), schedules.edm(), n=20_000, seed=0, batch_size=20_000)
    (batch,) = pairs.batches("edm")
    logs = batch.t.double().log()
    assert logs.mean().item() == pytest.approx(-1.2, abs=5 * 1.2 / 20_000**0.5)
    assert logs.std().item() == pytest.approx(1.2, rel=0.03)
    # the data is zero: x = σ·ε
    torch.testing.assert_close(batch.x.square().mean(1).sqrt().mean(), batch.t.mean(), rtol=0.1, atol=0.0)


@pytest.mark.parametrize(
    ("time", "value"),
    [
        ("sigma", lambda t, T, s: s),
        ("log_sigma", lambda t, T, s: math.log(s) / 4),
        ("log_snr", lambda t, T, s: -2 * math.log(s)),
        ("index", lambda t, T, s: t - 1),
        ("fraction", lambda t, T, s: t / T),
    ],
)
def test_the_network_receives_the_time_that_is_named(time, value):
    T = 30
    schedule = schedules.edm(T=T, time=time, time_scale=3.0)
    for t in (1, 2.5, 17, 30):
        level = schedule.at(t)
        assert level.time == pytest.approx(3 * value(t, T, level.sigma), rel=1e-6)
        assert schedule.at_sigma(level.sigma).time == pytest.approx(level.time, rel=1e-4)
    again = schedules.build(json.loads(json.dumps(dict(schedule.spec))))
    for name in ("alpha", "sigma", "times"):
        assert torch.equal(getattr(again, name), getattr(schedule, name))
    assert again.at(2.5) == schedule.at(2.5)


def test_every_schedule_takes_a_time_and_its_scale():
    makers = [
        lambda **o: schedules.cosine(20, **o),
        lambda **o: schedules.linear(20, **o),
        lambda **o: schedules.scaled_linear(20, **o),
        lambda **o: schedules.from_betas([0.1] * 20, **o),
        lambda **o: schedules.from_alpha_bars([1 - t / 21 for t in range(1, 21)], **o),
        lambda **o: schedules.flow(20, **o),
    ]
    for make in makers:
        unit = make(time="fraction")
        assert unit.at(5).time == pytest.approx(0.25)
        assert isinstance(unit.at(20).time, float)
        assert make(time="index", time_scale=0.05).at(20).time == pytest.approx(0.95)
        log = make(time="log_snr").at(5) if make is not makers[-1] else None
        if log is not None:
            assert log.time == pytest.approx(2 * math.log(log.alpha / log.sigma))
        spec = json.loads(json.dumps(dict(unit.spec)))
        assert torch.equal(schedules.build(spec).times, unit.times)
        pairs = flare.noising.pairs(torch.zeros(3, 2), unit, n=50, seed=0)
        (batch,) = pairs.batches("sample")
        assert batch.t.dtype == torch.float32
        assert ((batch.t > 0) & (batch.t <= 1)).all()
    whole = schedules.cosine(20, time_scale=50)
    assert [whole.at(t).time for t in (1, 20)] == [0, 950]
    assert isinstance(whole.at(3).time, int)


def test_a_time_of_ones_own_is_saved_by_its_name():
    name = "test_only_root"
    if name not in schedules.TIMES:

        @schedules.register_time
        def test_only_root(t, T, alpha, sigma):
            """√σ."""
            return sigma.sqrt()

    schedule = schedules.edm(time=name)
    assert schedule.at(400).time == pytest.approx(schedule.at(400).sigma ** 0.5)
    assert schedules.build(dict(schedule.spec)).at(400) == schedule.at(400)
    with pytest.raises(ValueError, match="unknown time 'rooot'"):
        schedules.build({"name": "edm", "time": "rooot"})


def test_a_posterior_knows_the_schedule_that_it_was_fitted_on():
    own = Summary.of(schedules.edm())
    assert own.agrees(Summary.of(schedules.edm()))
    assert own.agrees(Summary.read(json.loads(json.dumps(own.__dict__))))
    for other in (
        schedules.edm(sigma_max=70.0),
        schedules.edm(training=(-0.4, 1.0)),
        schedules.edm(time="log_sigma"),
        schedules.edm(time_scale=2.0),
        schedules.edm(T=500),
        schedules.flow(1000),
    ):
        assert not own.agrees(Summary.of(other)), other.spec
    # ρ is the sampler's
    assert own.agrees(Summary.of(schedules.edm(rho=5.0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.edm(0.0), "0 < sigma_min < sigma_max"),
        (lambda: schedules.edm(2.0, 1.0), "0 < sigma_min < sigma_max"),
        (lambda: schedules.edm(sigma_max=math.inf), "must be finite"),
        (lambda: schedules.edm(rho=0), "rho must be positive"),
        (lambda: schedules.edm(T=1), "at least 2"),
        (lambda: schedules.edm(training=(0.0, 0.0)), "positive standard deviation"),
        (lambda: schedules.edm(training=(0.0,)), "positive standard deviation"),
        (lambda: schedules.edm(1e3, 1e4, training=(-1.2, 0.1)), "no training level lies in"),
        (lambda: schedules.edm(time="sigm"), "did you mean 'sigma'"),
        (lambda: schedules.edm(time_scale=math.nan), "finite number"),
        (lambda: schedules.edm().at(1001), r"0\.\.1000"),
        (lambda: schedules.flow(5, time="log_sigma"), "is infinite at t = 5"),
        (lambda: samplers.euler(schedules.cosine(9), 3), "needs a flow schedule"),
        (lambda: schedules.edm().sigmas(3, "karas"), "did you mean 'karras'"),
        (lambda: samplers.ddpm(schedules.edm(), 3), "variance-preserving"),
        (lambda: samplers.heun(schedules.edm(), 0), "at least 1"),
        (lambda: samplers.Churn(-1.0), "amount ≥ 0"),
        (lambda: samplers.Churn(1.0, 3.0, 2.0), "low ≤ high"),
        (lambda: samplers.heun(schedules.flow(9), 3, churn=samplers.Churn(1.0)), "churn needs schedules"),
        (lambda: samplers.heun(schedules.from_alpha_bars([0.5, 0.0]), 2), "cannot start at pure noise"),
        (lambda: samplers.heun(schedules.cosine(9), 3).rows("edm"), r"needs α = 1, .*use schedules\.edm"),
        (lambda: samplers.heun(schedules.edm(time="log_sigma"), 3).rows("edm"), "with its default time"),
        (lambda: samplers.heun(schedules.edm(), 3).rows("v"), "α² \\+ σ² = 1"),
        (lambda: next(pairs_of(schedules.edm(time_scale=2.0)).batches("edm")), "with its default time"),
        (lambda: next(pairs_of(schedules.flow(9)).batches("edm")), "needs α = 1"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def pairs_of(schedule):
    return flare.noising.pairs(torch.zeros(3, 2), schedule, n=5, seed=0)
