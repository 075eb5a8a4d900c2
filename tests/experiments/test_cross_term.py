"""The rule of the cross-term study: its parts add up to the variance of the tangents."""

from __future__ import annotations

import pytest
import torch

import flare
from experiments import lab
from experiments.cross_term_case import SUBSET, Case
from experiments.cross_term_rule import CrossTerm
from flare import bench


def test_the_parts_add_up_to_the_variance_of_the_tangents():
    model = bench.load("sines")
    denoiser, steps = model.denoiser, model.sampler("ddpm", 8)
    subset = flare.subsets.random(denoiser, count=30, seed=0)
    posterior = flare.posteriors.dense(denoiser, subset, lab.pairs(model, 200), 10.0, 1e5)
    directions = posterior.directions(12, torch.Generator().manual_seed(0))
    rule = CrossTerm(denoiser, subset, directions)
    options = {"batch_size": 3, "score": "trace", "seed": 4}
    result = flare.sample(denoiser, steps, posterior, 3, model.shape, rule=rule, **options)
    left = rule.left
    assert len(left.terms) == 8
    torch.testing.assert_close(left.own + left.cross, left.dx.var(0).double(), rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(result.score, left.dx.var(0).sum(1), rtol=1e-4, atol=0.0)
    # small draws stay in the linear range
    torch.testing.assert_close(left.models.x.var(0).sum(1), result.score, rtol=0.2, atol=0.0)
    # nothing has moved before the first step, so that it has no cross term
    assert left.terms[0][0].abs().max() == 0
    plain = flare.sample(denoiser, steps, n=3, shape=model.shape, seed=4)
    torch.testing.assert_close(result.samples, plain.samples, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "title"),
    [({}, "sines"), ({"subset": SUBSET}, "sines"), ({"subset": None}, "sines, 8,330 parameters"),
     ({"subset": 2_000}, "sines, 2,000 parameters")],
)  # fmt: skip
def test_a_case_says_how_many_parameters_are_uncertain(config, title):
    assert Case("sines", "paper", config, {"parameters": 8_330}).title == title


@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_of_the_cross_term_hold(seed):
    """Eq. 30 to 32 of the paper, for jointly Gaussian states and predictions along random directions."""
    g = torch.Generator().manual_seed(seed)
    d, draws = 5, 2_000
    both = torch.randn(draws, 2 * d, generator=g) @ torch.randn(2 * d, 2 * d, generator=g)
    u = torch.nn.functional.normalize(torch.randn(d, generator=g), dim=0)
    x, eps = both[:, :d] @ u, both[:, d:] @ u
    a, b, delta = (torch.rand(3, generator=g) * torch.tensor([2.0, 1.0, 4.0]) + 0.05).tolist()
    covariance = torch.cov(torch.stack([x, eps]))
    vx, ve, cross = covariance[0, 0], covariance[1, 1], covariance[0, 1].abs()
    assert cross <= (vx * ve).sqrt()
    assert 2 * cross <= delta * vx + ve / delta
    middle = (a * x - b * eps).var()
    low, high = ((a**2 + s * a * b * delta) * vx + (b**2 + s * a * b / delta) * ve for s in (-1, 1))
    assert low <= middle <= high
