"""Posteriors over a sketch against the matrices SᵀHS, with S written out."""

from __future__ import annotations

import math

import pytest
import torch
from reference import naive_ggn, naive_jacobian, small_problem

import flare
from flare import posteriors, subsets

DELTA, SCALE, M = 0.3, 5.0, 14
FITS = {
    "dense": {"probes": None},
    "diagonal": {"probes": None},
    "low_rank": {"rank": M},
    "matrix_free": {"tolerance": 1e-10},
}


@pytest.fixture
def problem():
    net, denoiser, pairs = small_problem((3,), width=5)
    sketch = subsets.sketch(denoiser, M, seed=2)
    S = torch.zeros(denoiser.parameter_count, M, dtype=torch.float64)
    S[torch.arange(len(S)), sketch.buckets] = sketch.signs.double()
    return net, denoiser, pairs, sketch, S


@pytest.mark.parametrize("structure", FITS)
def test_every_structure_fits_a_sketch(problem, structure, tmp_path):
    net, denoiser, pairs, sketch, S = problem
    H = S.T @ naive_ggn(net, pairs)[0] @ S
    H = H.diag().diag() if structure == "diagonal" else H
    sigma = torch.linalg.inv(SCALE * H + DELTA * torch.eye(M, dtype=torch.float64))
    posterior = getattr(posteriors, structure)(denoiser, sketch, pairs, DELTA, SCALE, **FITS[structure])
    v = torch.randn(3, M, dtype=torch.float64)
    torch.testing.assert_close(posterior.covariance(v), v @ sigma, rtol=1e-6, atol=1e-8)
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    given = {"denoiser": denoiser, "pairs": pairs} if structure == "matrix_free" else {}
    again = posteriors.load(path, **given)
    assert repr(again.subset) == repr(sketch)
    draws = [p.directions(4, torch.Generator().manual_seed(1)) for p in (posterior, again)]
    assert torch.equal(*draws)


@pytest.mark.parametrize("derivative", ["exact", "secant"])
def test_the_tangent_rule_moves_all_parameters(problem, derivative):
    """One DDIM step: x_0 is affine in f, so its variance is b²·diag(J S Σ Sᵀ Jᵀ)."""
    net, denoiser, pairs, sketch, S = problem
    posterior = posteriors.dense(denoiser, sketch, pairs, DELTA, SCALE, probes=None)
    steps = flare.samplers.ddim(pairs.schedule, 1)
    result = flare.sample(
        denoiser, steps, posterior, n=4, shape=(3,), directions="exact", score="trace", derivative=derivative
    )
    row = steps.rows("epsilon")[0]
    x = torch.stack([_start(i) for i in range(4)]).double()
    J = naive_jacobian(net, x, torch.full((4,), row.time))
    sigma = posterior.covariance(torch.eye(M, dtype=torch.float64))
    variance = torch.einsum("bdp,pm,mn,qn,bdq->bd", J, S, sigma, S, J) * (row.B[0] * row.q) ** 2
    torch.testing.assert_close(result.variance, variance, rtol=1e-4, atol=1e-8)


def _start(index):
    """x_T of the sample with this index, from its stream."""
    return flare.core.noise_streams.NoiseStreams(0, index, 1, (3,), 1).next()[0]


def test_monte_carlo_agrees_with_the_tangent_rule_for_a_narrow_posterior(problem):
    _, denoiser, pairs, sketch, _ = problem
    posterior = posteriors.dense(denoiser, sketch, pairs, 1e8, SCALE)
    options = {"n": 3, "shape": (3,), "directions": 400, "score": "trace"}
    steps = flare.samplers.ddim(pairs.schedule, 4)
    first = flare.sample(denoiser, steps, posterior, **options)
    second = flare.sample(denoiser, steps, posterior, rule="monte_carlo", **options)
    assert (first.variance.sum() / second.variance.sum()).item() == pytest.approx(1, rel=0.05)
    assert flare.score(denoiser, posterior, pairs.schedule, first.samples, score="trace").isfinite().all()


def test_a_kronecker_posterior_refuses_a_sketch(problem):
    _, denoiser, pairs, sketch, _ = problem
    with pytest.raises(ValueError, match=r"whole layers, but the sketch has other coordinates: Sketch\(14"):
        posteriors.kronecker(denoiser, sketch, pairs)


def test_the_evidence_of_a_sketch_is_that_of_its_linear_model(problem):
    """With θ = rest + S z, the prior is that of z: its norm is that of the least-squares coordinates."""
    net, denoiser, pairs, sketch, S = problem
    posterior = posteriors.dense(denoiser, sketch, pairs, DELTA, SCALE, probes=None)
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    z = torch.linalg.lstsq(S, theta[:, None]).solution[:, 0]
    assert posterior.origin.squared_norm == pytest.approx(z.square().sum().item())
    change = posterior.refit(2 * DELTA).log_marginal_likelihood() - posterior.log_marginal_likelihood()
    H = S.T @ naive_ggn(net, pairs)[0] @ S
    eye = torch.eye(M, dtype=torch.float64)
    dets = [torch.logdet(SCALE * H + delta * eye).item() for delta in (DELTA, 2 * DELTA)]
    expected = 0.5 * (M * math.log(2) - DELTA * z.square().sum().item() - dets[1] + dets[0])
    assert change == pytest.approx(expected, rel=1e-6)


def test_sensitive_takes_the_largest_squared_gradients():
    net, denoiser, pairs = small_problem((3,), width=5)
    diagonal = naive_ggn(net, pairs)[0].diag()
    subset = subsets.sensitive(denoiser, pairs, 9, probes=None)
    marked = {n: torch.zeros(p.shape) for n, p in denoiser.params.items()} | subset.scatter(torch.ones(9))
    chosen = torch.cat([marked[name].flatten() for name in denoiser.params]).bool()
    assert subset.size == 9
    assert diagonal[chosen].min() > diagonal[~chosen].max()
    assert subsets.sensitive(denoiser, pairs, fraction=0.5).size == round(len(diagonal) / 2)
    with pytest.raises(ValueError, match="either count= or fraction="):
        subsets.sensitive(denoiser, pairs)
