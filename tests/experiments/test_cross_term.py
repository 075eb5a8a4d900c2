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
