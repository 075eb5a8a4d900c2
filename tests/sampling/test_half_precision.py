"""Networks in half precision: they sample in it, and what is differentiated is so in float32."""

from __future__ import annotations

import copy
import shutil
from collections import deque

import pytest
import torch
from reference import TinyNet

import flare
from flare import noising, posteriors, samplers, schedules, subsets
from flare.bench.baselines import bayesdiff, generative
from flare.core import ENDPOINT_LEVELS
from flare.diagnostics.linearization import spearman
from flare.network.guidance import guide

SCHEDULE = schedules.linear(12, 0.02, 0.3)
STEPS = samplers.ddim(SCHEDULE, 8, eta=0.3)
HALVES = [torch.bfloat16, torch.float16]
FITS = {
    "dense": (lambda d: subsets.random(d, count=20, seed=1), {}),
    "diagonal": (subsets.everything, {}),
    "low_rank": (subsets.everything, {"rank": 5}),
    "kronecker": (lambda d: subsets.named(d, "second.*"), {}),
    "matrix_free": (subsets.everything, {"prior_precision": 10.0}),
}
RULES = {
    "tangent": {"rule": "tangent", "score": ["trace", "expected_residual"]},
    "secant": {"rule": "tangent", "derivative": "secant"},
    "exact": {"rule": "tangent", "directions": "exact"},
    "monte_carlo": {"rule": "monte_carlo", "score": "trace"},
    "decoupled": {"rule": "decoupled"},
    "released": {"rule": "released", "derivative": "secant"},
    "endpoint": {"rule": "endpoint"},
}


def networks(dtype, shape=(3,)):
    """A network in half precision, and the one of the same weights in float32."""
    torch.manual_seed(2)
    half = TinyNet(shape, width=24).to(dtype)
    return flare.Denoiser(half), flare.Denoiser(copy.deepcopy(half).float())


def pairs(cond=None):
    data = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return noising.pairs(data, SCHEDULE, n=300, batch_size=100, cond=cond)


def fitted(name, denoiser):
    subset, options = FITS[name]
    return getattr(posteriors, name)(denoiser, subset(denoiser), pairs(), **{"scale": 50.0, **options})


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_that_of_the_same_weights_in_float32(tmp_path, name, dtype):
    half, full = networks(dtype)
    a, b = fitted(name, half), fitted(name, full)
    assert (a.prior_precision, a.origin.statistics) == (b.prior_precision, b.origin.statistics)
    for key, value in b.tensors().items():
        assert torch.equal(a.tensors()[key], value)
    a.check(half)
    with pytest.raises(ValueError, match="another dtype"):
        a.check(full)
    a.save(tmp_path / "p.safetensors")
    again = posteriors.load(tmp_path / "p.safetensors", denoiser=half, pairs=pairs())
    draws = [p.directions(2, torch.Generator().manual_seed(0)) for p in (a, again, b)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert torch.isfinite(draws[0]).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_variances_are_those_of_float32_along_the_network_s_own_trajectory(name, dtype):
    half, full = networks(dtype)
    options = {"n": 40, "shape": (3,), "seed": 3, "directions": 6, **RULES[name]}
    ours = flare.sample(half, STEPS, fitted("dense", half), **options)
    theirs = flare.sample(full, STEPS, fitted("dense", full), **options)
    assert ours.samples.dtype == dtype
    assert torch.equal(ours.samples, flare.sample(half, STEPS, n=40, shape=(3,), seed=3).samples)
    assert not ours.lost.any()
    # what differs is where the samples are, by the rounding of their own trajectories
    for score, value in ours.scores.items():
        assert value.dtype == torch.float32
        assert float((value / theirs.scores[score]).median()) == pytest.approx(1.0, abs=0.03)
        assert spearman(value, theirs.scores[score]) > 0.97


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scores_of_existing_samples_are_those_of_float32(dtype):
    half, full = networks(dtype)
    x = torch.randn(20, 3)
    for score in ("trace", "expected_residual"):
        ours, theirs = (
            flare.score(net, fitted("kronecker", net), SCHEDULE, x, score=score, directions=4)
            for net in (half, full)
        )
        assert torch.equal(ours, theirs)


def test_the_wide_copy_is_called_only_for_what_is_differentiated(monkeypatch):
    half, _ = networks(torch.bfloat16)
    posterior, seen = fitted("dense", half), []
    call = flare.Denoiser.call

    def counted(self, params, x, t, cond=None):
        seen.append(self.dtype)
        return call(self, params, x, t, cond)

    monkeypatch.setattr(flare.Denoiser, "call", counted)
    flare.sample(
        half,
        STEPS,
        posterior,
        n=4,
        shape=(3,),
        rule="endpoint",
        directions=2,
        derivative="secant",
        batch_size=4,
    )
    probes = {torch.bfloat16: 4, torch.float64: 5}  # of two samples, before the first step
    assert seen.count(torch.bfloat16) == len(STEPS) + probes[torch.bfloat16]
    # one call, and one per direction
    assert seen.count(torch.float64) == 3 * len(ENDPOINT_LEVELS) + probes[torch.float64]
    assert torch.float32 not in seen


def test_conditions_in_half_precision_are_widened_too():
    half, full = networks(torch.bfloat16)
    shift = torch.linspace(0, 1, 8)
    options = {"n": 8, "shape": (3,), "directions": 4}
    ours = flare.sample(half, STEPS, fitted("dense", half), cond={"shift": shift.bfloat16()}, **options)
    theirs = flare.sample(
        full, STEPS, fitted("dense", full), cond={"shift": shift.bfloat16().float()}, **options
    )
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=0.1, atol=1e-6)


def test_guided_networks_are_widened_inside():
    half, full = networks(torch.bfloat16)
    x, t = torch.randn(4, 3), torch.full((4,), 5)
    cond = {"shift": torch.linspace(0, 1, 4).bfloat16()}
    ours, theirs = (guide(net, 2.0, {"shift": 0.0}).wide() for net in (half, full))
    assert torch.equal(ours(x, t, cond), theirs(x, t, {"shift": cond["shift"].float()}))
    assert theirs.wide() is theirs


def test_baselines_that_draw_models_do_so_in_float32():
    half, full = networks(torch.bfloat16)
    options = {"n": 30, "shape": (3,), "seed": 1}
    a, b = (generative(net, STEPS, fitted("kronecker", net), models=4, **options) for net in (half, full))
    assert torch.equal(a.score, b.score)
    a, b = (bayesdiff(net, STEPS, fitted("kronecker", net), directions=4, **options) for net in (half, full))
    torch.testing.assert_close(a.score, b.score, rtol=0.05, atol=1e-5)


def test_a_network_in_full_precision_is_not_copied():
    _, full = networks(torch.float16)
    assert full.wide() is full


@pytest.mark.parametrize("structure", FITS)
def test_autocast_does_not_round_a_posterior(structure):
    denoiser = flare.Denoiser(TinyNet((4,)))
    choose, options = FITS[structure]
    pairs = noising.pairs(torch.randn(20, 4), SCHEDULE, n=30)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            fitted = getattr(posteriors, structure)(denoiser, choose(denoiser), pairs, **options)
            found.append(fitted.covariance(torch.eye(fitted.size, dtype=torch.float64)))
    assert torch.equal(*found)


def test_what_is_observed_is_not_rounded_by_autocast():
    model = flare.bench.load("grid")
    A = torch.randn(2, 3)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            run = flare.trajectories(
                model.denoiser, model.steps(3), n=2, shape=(2,), observe=lambda x: x @ A.to(x)
            )
            deque(run, maxlen=0)
            found.append(run.result.observed)
    assert torch.equal(*found)


def test_autocast_changes_nothing():
    model = flare.bench.load("digits")
    net, data = model.denoiser.module, model.data[:300]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            scorer = flare.fit(net, data, model.schedule, subset=50, pairs=20)
            result = scorer.sample(3, steps=2, directions=1)
            score = flare.score(model.denoiser, scorer.posterior, model.schedule, result.samples)
            assert torch.is_autocast_enabled("cpu") == enabled
        found.append([result.samples, result.variance, result.verdict.z, score])
    for with_it, without in zip(*reversed(found), strict=True):
        torch.testing.assert_close(with_it, without)


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_a_compiled_network_is_the_network():
    model = flare.bench.load("grid")
    net, data = model.denoiser.module, model.data[:300]
    one, two = (
        flare.fit(each, data, model.schedule, subset=50, pairs=200).score(data[:9])
        for each in (net, torch.compile(net))
    )
    assert torch.equal(one.verdict.z, two.verdict.z)
