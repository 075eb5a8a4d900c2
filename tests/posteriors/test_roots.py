"""Square roots of Σ against the matrix itself, for every structure, below and above 2,048 columns."""

from __future__ import annotations

import pytest
import torch
from reference import small_problem

from flare import posteriors, subsets
from flare.posteriors import Root
from flare.posteriors.posterior import LARGEST

OPTIONS = {"low_rank": {"rank": 5}, "matrix_free": {"tolerance": 1e-9}}


def fit(structure, width=4, subset=subsets.everything, **options):
    _, denoiser, pairs = small_problem((3,), width=width)
    own = OPTIONS.get(structure, {}) | options
    return getattr(posteriors, structure)(denoiser, subset(denoiser), pairs, 0.5, 10.0, **own)


def columns(root, size, block=0):
    """D, (m, r)."""
    D = root.project(torch.eye(root.subset.size, dtype=torch.float64), size, block)
    single = root.project(torch.eye(root.subset.size, dtype=torch.bfloat16), size, block)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, D, check_dtype=False)
    return D


def covariance(posterior):
    return posterior.covariance(torch.eye(posterior.size, dtype=torch.float64))


@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", "kronecker"])
def test_the_exact_root(structure):
    posterior = fit(structure)
    root = Root.of(posterior, 0)
    D = columns(root, LARGEST)
    torch.testing.assert_close(D @ D.T, covariance(posterior), rtol=1e-9, atol=1e-12)
    for block in (1, 5):
        assert torch.equal(columns(root, posterior.size, block), D)
    assert root.subset is posterior.subset


@pytest.mark.parametrize("truncation", ["curvature", "covariance"])
def test_a_truncated_covariance_has_a_thin_root(truncation):
    posterior = fit("low_rank", truncation=truncation)
    D = columns(Root.of(posterior, 0), 5)
    assert D.shape == (posterior.size, 5)
    torch.testing.assert_close(D @ D.T, covariance(posterior), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", "kronecker", "matrix_free"])
def test_draws_are_the_root_on_average(structure):
    """vᵀD Dᵀv is vᵀΣv times χ²/r: within 5 standard deviations."""
    posterior = fit(structure)
    root = Root.of(posterior, 3)
    count = root.draws.shape[1]
    assert count == (128 if structure == "matrix_free" else LARGEST)
    size = min(count, posterior.size - 1)  # too few for the exact root
    v = torch.randn(6, posterior.size, dtype=torch.float64)
    truth, total = (v @ covariance(posterior) * v).sum(1), 0.0
    blocks = count // size
    for block in range(blocks):
        D = columns(root, size, block)
        assert D.shape == (posterior.size, size)
        total = total + (v @ D).square().sum(1) / blocks
    assert ((total / truth - 1).abs() <= 5 * (2 / (blocks * size)) ** 0.5).all()


def test_blocks_use_all_draws_before_one_is_used_again():
    root = Root.of(fit("diagonal"), 0)
    size = 16
    found = torch.cat([columns(root, size, block) * size**0.5 for block in range(LARGEST // size)], dim=1)
    torch.testing.assert_close(found, root.draws, rtol=1e-12, atol=0)
    assert torch.equal(columns(root, size, LARGEST // size), columns(root, size, 0))
    # of draws that do not fill a block, none is used
    assert torch.equal(columns(root, 15, LARGEST // 15), columns(root, 15, 0))


def test_above_the_largest_size_there_are_draws_alone():
    posterior = fit("diagonal", width=300)
    assert posterior.size > LARGEST
    root = Root.of(posterior, 0)
    assert root.exact is None
    sigma = posterior.covariance(torch.ones(posterior.size, dtype=torch.float64))
    v = torch.randn(4, posterior.size, dtype=torch.float64)
    ours = root.project(v, LARGEST).square().sum(1)
    torch.testing.assert_close(ours, (v.square() * sigma).sum(1), rtol=0.2, atol=0)


def test_a_seed_repeats_and_another_differs():
    posterior = fit("dense")
    first, again, other = (Root.of(posterior, seed).draws for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
