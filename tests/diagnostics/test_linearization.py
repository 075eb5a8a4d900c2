"""First order is judged by the score in use, and what is advised is true."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import small_problem
from scipy import stats

import flare
from flare.diagnostics.linearization import spearman


@pytest.mark.parametrize("seed", range(3))
def test_ties_share_their_mean_rank(seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.randint(4, (30,), generator=g).double()
    b = a + torch.randint(3, (30,), generator=g)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert spearman(a, -a) == pytest.approx(-1)


@pytest.fixture(scope="module")
def problem():
    _, denoiser, pairs = small_problem((3,), width=8, n=60, prediction="sample")
    subset = flare.subsets.everything(denoiser)
    posterior = flare.posteriors.dense(denoiser, subset, pairs, 1.0, "calibrated")
    return denoiser, flare.samplers.ddim(pairs.schedule, 6), posterior


def check(problem, posterior, **options):
    denoiser, steps, _ = problem
    options = {"n": 12, "shape": (3,), "draws": 12} | options
    return flare.check_linearization(denoiser, steps, posterior, **options)


def test_the_score_is_the_default_of_sample(problem):
    denoiser, steps, posterior = problem
    found = check(problem, posterior)
    assert found.score == "expected_residual"
    options = {"n": 12, "shape": (3,), "directions": 12}
    for rule in ("tangent", "monte_carlo"):
        result = flare.sample(
            denoiser, steps, posterior, **options, rule=rule, score=["expected_residual", "trace"]
        )
        torch.testing.assert_close(getattr(found, rule), result.scores["expected_residual"])
    trace = check(problem, posterior, score="trace")
    assert trace.score == "trace"
    assert check(problem, posterior.refit(scale=1.0)).score == "trace"


def test_the_prior_precision_that_is_advised_is_enough(problem):
    wild = problem[2].refit(1e-2, 1e-2)
    found = check(problem, wild, score="trace")
    assert not found.trusted
    assert found.enough is not None
    assert found.enough / wild.prior_precision in flare.diagnostics.linearization.FACTORS
    assert check(problem, wild.refit(found.enough), score="trace").trusted
    assert f"prior_precision={found.enough:.2g}" in found.verdict
    assert f"--prior {found.enough:.2g}" in found.advice("--prior ", "--rule monte_carlo")
    assert "use rule='monte_carlo'" in replace(found, enough=None).verdict
    assert check(problem, wild.refit(1e9), score="trace").advice() == ""


def test_a_good_model_passes_by_the_score_in_use_although_its_traces_disagree():
    model = flare.bench.load("sines")
    subset = flare.subsets.random(model.denoiser, count=300, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=1000, weighting=model.weighting)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs)
    found, trace = (
        flare.check_linearization(
            model.denoiser, model.sampler("ddim", 20), posterior, 24, model.shape, draws=12, score=score
        )
        for score in (None, "trace")
    )
    assert found.score == "expected_residual"
    assert found.trusted
    assert found.correlation > trace.correlation
