"""The parameter budget: a larger share never has a smaller variance, and the exact terms of all shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jacobian_oracle import differentiate

import flare
from experiments import budget, lab
from experiments.budget_shares import Chosen, Shares
from flare import bench
from flare.propagation import Tangent

PRINTED = {"prior_precision": 1e-3, "scale": 1.0}


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(2, 12),
    rank=st.integers(0, 12),
    ridge=st.floats(1e-3, 10.0),
    data=st.data(),
)
def test_a_larger_subset_never_has_a_smaller_variance(seed, p, rank, ridge, data):
    large = data.draw(st.integers(1, p))
    small = data.draw(st.integers(1, large))
    rng = np.random.default_rng(seed)
    G, j, order = rng.normal(size=(rank, p)), rng.normal(size=p), rng.permutation(p)
    precision = G.T @ G + ridge * np.eye(p)

    def solve(index):
        return np.linalg.solve(precision[np.ix_(index, index)], j[index])

    less, more = (float(j[index] @ solve(index)) for index in (order[:small], order[:large]))
    assert less <= more * (1 + 1e-9)
    # why: it is the maximum of 2·jᵀv − vᵀ(H + λ)v over the v within the subset
    v = np.zeros(p)
    v[order[:small]] = solve(order[:small])
    assert 2 * j @ v - v @ precision @ v == pytest.approx(less)
    other = v.copy()
    other[order[:small]] += rng.normal(size=small)
    assert 2 * j @ other - other @ precision @ other <= less * (1 + 1e-9)


@pytest.fixture(scope="module")
def model():
    return bench.load("grid")


def fit(model, structure, fraction):
    subset = flare.subsets.random(model.denoiser, fraction=fraction, seed=0)
    structured = getattr(flare.posteriors, structure)
    return structured(model.denoiser, subset, lab.pairs(model, 200), probes=budget.PROBES, **PRINTED)


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_the_terms_of_all_shares_are_exact_and_grow(model, structure):
    denoiser = model.denoiser
    fitted = {f"{f:g}": fit(model, structure, f) for f in (0.01, 0.03)}
    both = {share: {"printed": one, "tuned": one.refit(0.5, 100.0)} for share, one in fitted.items()}
    rows = torch.tensor([0, 2, 3])
    source = Shares(denoiser, both, rows, every=2)
    g = torch.Generator().manual_seed(0)
    x, t = torch.randn(5, 2, generator=g), torch.full((5,), 40)
    found = source(0, x, t)
    for share, settings_ in both.items():
        for setting, posterior in settings_.items():
            J = posterior.subset.gather(differentiate(denoiser, x, t), lead=2)
            expected = (J * posterior.covariance(J)).sum(-1)
            actual = found[f"{share} {setting}"]
            torch.testing.assert_close(actual[rows], expected[rows], rtol=1e-3, atol=1e-6)
            assert not actual[[1, 4]].any()
            assert torch.equal(source.traces[f"{share} {setting}"][0], actual[rows].sum(1))
    assert (found["0.03 printed"][rows] >= found["0.01 printed"][rows] * budget.ROUNDING).all()


def test_terms_are_held_between_computed_steps(model):
    posterior = fit(model, "dense", 0.01)
    source = Shares(model.denoiser, {"0.01": {"printed": posterior}}, torch.arange(3), every=2)
    x, t = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.full((3,), 40)
    first = source(0, x, t)["0.01 printed"]
    assert torch.equal(source(1, x + 1, t)["0.01 printed"], first)
    assert not torch.equal(source(2, x + 1, t)["0.01 printed"], first)
    assert len(source.traces["0.01 printed"]) == 2


def test_the_curvature_of_a_share_is_a_part_of_that_of_a_larger_one(model):
    small, large = (fit(model, "dense", f) for f in (0.01, 0.03))
    p = model.denoiser.parameter_count
    order = torch.arange(p).split([v.numel() for v in model.denoiser.params.values()])
    positions = {
        name: part.view_as(value)
        for (name, value), part in zip(model.denoiser.params.items(), order, strict=True)
    }
    here, there = (one.subset.gather(positions) for one in (small, large))
    inside = torch.isin(there, here)
    assert torch.equal(there[inside], here)
    H_small, H_large = (one.eigenvectors * one.eigenvalues @ one.eigenvectors.T for one in (small, large))
    torch.testing.assert_close(H_small, H_large[inside][:, inside], rtol=1e-6, atol=1e-8)


def test_rare_bad_samples_are_all_chosen():
    bad = torch.zeros(50, dtype=torch.bool)
    bad[[7, 40, 41]] = True
    rows = budget.choose_rows(bad, 10)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 40, 41]
    assert budget.choose_rows(bad, 50).tolist() == list(range(50))
    assert int(bad[budget.choose_rows(bad, 4)].sum()) == 2


def test_chosen_samples_have_the_variance_that_all_would_have(model):
    denoiser, steps = model.denoiser.by("exact"), model.sampler("ddpm", 6)
    posterior = fit(model, "dense", 0.01)
    directions = posterior.directions(5, torch.Generator().manual_seed(0)).to(denoiser.dtype)
    rule = Tangent(denoiser, posterior.subset, directions)
    rows = torch.tensor([1, 4])
    options = {"n": 6, "shape": model.shape, "score": "trace", "seed": 2, "batch_size": 6}
    every = flare.sample(denoiser, steps, posterior, rule=rule, **options)
    some = flare.sample(denoiser, steps, posterior, rule=Chosen(denoiser, rule, rows), **options)
    torch.testing.assert_close(some.samples, every.samples, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some.score[rows], every.score[rows], rtol=1e-3, atol=0.0)
    assert not some.score[[0, 2, 3, 5]].any()
