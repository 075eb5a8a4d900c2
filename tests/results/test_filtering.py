from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flare


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_keep_fraction_keeps_the_lowest(values, fraction):
    score = torch.tensor(values)
    mask = flare.keep_fraction(score, fraction)
    assert mask.sum() == max(1, round(fraction * len(values)))
    if not mask.all():
        assert score[mask].max() <= score[~mask].min()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(-1e6, 1e6))
def test_keep_below_is_a_threshold(values, threshold):
    assert flare.keep_below(torch.tensor(values).double(), threshold).tolist() == [
        v <= threshold for v in torch.tensor(values).double().tolist()
    ]


def test_bad_input_is_named():
    score = torch.rand(5)
    for call, message in [
        (lambda: flare.keep_fraction(score, 0.0), r"\(0, 1\], got 0\.0\.$"),
        (lambda: flare.keep_fraction(score, 50), r"\(0, 1\], got 50; did you mean 0\.5\?$"),
        (lambda: flare.keep_fraction(torch.rand(5, 2), 0.5), r"shape \(n,\)"),
        (lambda: flare.keep_fraction(torch.rand(0), 0.5), "at least 1"),
        (lambda: flare.keep_below(torch.tensor([1.0, torch.inf]), 0.5), "1 of 2 scores are infinite"),
        (lambda: flare.keep_fraction(torch.full((3,), torch.nan), 0.5), "all 3 scores are NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(0.05, 1), st.booleans())
def test_lost_samples_do_not_change_the_mask_of_the_others(seed, lost, fraction, grouped):
    g = torch.Generator().manual_seed(seed)
    score, x = torch.rand(40, generator=g), torch.randn(40, 2, generator=g)
    gone = torch.randperm(40, generator=g)[:lost]
    score[gone], x[gone] = torch.nan, torch.nan
    found = ~score.isnan()
    labels = flare.strata(x, 3) if grouped else None
    mask = flare.keep_fraction(score, fraction, typical=0.2, strata=labels)
    assert not mask[gone].any()
    own = flare.strata(x[found], 3) if grouped else None
    assert torch.equal(mask[found], flare.keep_fraction(score[found], fraction, typical=0.2, strata=own))
    assert torch.equal(flare.keep_below(score, 0.5)[found], flare.keep_below(score[found], 0.5))
    assert not flare.keep_below(score, 0.5)[gone].any()


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0.05, 1))
def test_every_stratum_keeps_its_best_fraction(seed, groups, fraction):
    g = torch.Generator().manual_seed(seed)
    score, labels = torch.rand(60, generator=g), torch.randint(groups, (60,), generator=g)
    mask = flare.keep_fraction(score, fraction, strata=labels)
    for label in labels.unique():
        own = labels == label
        assert mask[own].sum() == max(1, round(fraction * int(own.sum())))
        if not mask[own].all():
            assert score[own & mask].max() <= score[own & ~mask].min()


def test_typical_scores_are_ties():
    score = torch.tensor([0.3, 5.0, 0.1, 0.9, 0.2, 7.0])
    # all but two are typical: the first three of them are kept, not the lowest three
    mask = flare.keep_fraction(score, 0.5, typical=1.0)
    assert mask.tolist() == [True, False, True, True, False, False]
    assert torch.equal(flare.keep_fraction(score, 0.5, typical=-1.0), flare.keep_fraction(score, 0.5))


def test_strata_find_modes_that_lie_apart():
    x = flare.bench.datasets.make("grid", 900)
    labels = flare.strata(x, 9, seed=1)
    truth = torch.arange(900) % 9
    found = {tuple(sorted(set(labels[truth == mode].tolist()))) for mode in range(9)}
    # k-means may split a mode between two centers, and at most once merge two modes in one
    assert len(found) >= 7
    sklearn = pytest.importorskip("sklearn.cluster").KMeans(9, n_init=10, random_state=0).fit(x.numpy())
    ours = sum((x[labels == c] - x[labels == c].mean(0)).square().sum() for c in labels.unique())
    assert ours <= 3 * sklearn.inertia_ + 40  # at worst one or two modes are split
    assert torch.equal(flare.strata(x, 9, seed=1), labels)


def test_strata_of_real_data_give_strays_no_region_of_their_own():
    real = flare.bench.datasets.make("grid", 900)
    x = torch.cat([real[:180], torch.tensor([[0.5, 0.5], [5.0, 5.0]])])
    alone, like = flare.strata(x, 12), flare.strata(x, 9, like=real)
    assert (alone == alone[-1]).sum() == 1
    assert (like == like[-1]).sum() > 10
    assert torch.equal(flare.strata(x, 9, like=x), flare.strata(x, 9))
    with pytest.raises(ValueError, match="like must have"):
        flare.strata(x, 2, like=torch.rand(5, 3))


@given(st.integers(0, 2**32 - 1), st.sampled_from([2.0**27, -(2.0**27), 2.0**30]))
def test_a_common_shift_changes_no_stratum(seed, shift):
    g = torch.Generator().manual_seed(seed)
    clusters = 8 * torch.rand(6, 3, generator=g)[torch.randint(6, (300,), generator=g)]
    x = ((clusters + torch.randn(300, 3, generator=g)).double() * 2**20).round() / 2**20  # x + shift is exact
    labels = flare.strata(x + shift, 6)
    assert torch.equal(labels, flare.strata(x, 6))
    assert torch.equal(flare.strata(x[:50] + shift, 6, like=x + shift), flare.strata(x[:50], 6, like=x))
    # brute force: each sample is nearest to the mean of its own stratum
    means = torch.stack([x[labels == label].mean(0) for label in range(6)])
    distances = (x[:, None] - means).square().sum(2)
    assert (distances.gather(1, labels[:, None])[:, 0] <= distances.min(1).values + 1e-9).all()


def test_one_diverged_sample_changes_the_strata_of_no_other():
    x = flare.bench.datasets.make("grid", 90).double()
    x[-1] = 1e18
    labels = flare.strata(x, 10)
    assert (labels == labels[-1]).sum() == 1
    assert len(labels.unique()) == 10


def test_strata_of_equal_samples_and_bad_input():
    assert flare.strata(torch.ones(5, 2), 3).shape == (5,)
    with pytest.raises(ValueError, match="count must be at most the number of samples, 5, got 6"):
        flare.strata(torch.ones(5, 2), 6)
    with pytest.raises(ValueError, match="one per sample"):
        flare.keep_fraction(torch.rand(4), 0.5, strata=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="finite score"):
        flare.keep_fraction(torch.rand(4), 0.5, typical=float("nan"))
    with pytest.raises(ValueError, match="integer labels"):
        flare.keep_fraction(torch.rand(4), 0.5, strata=torch.rand(4))


def test_lists_and_arrays_are_accepted_as_strata():
    score, labels = torch.tensor([3.0, 1.0, 2.0, 4.0]), [0, 0, 1, 1]
    expected = flare.keep_fraction(score, 0.5, strata=torch.tensor(labels))
    assert expected.tolist() == [False, True, True, False]
    for given_labels in (labels, tuple(labels), np.array(labels), np.array(labels, dtype=np.uint8)):
        assert torch.equal(flare.keep_fraction(score, 0.5, strata=given_labels), expected)
    for wrong in (["a", "a", "b", "b"], [0.5, 0, 1, 1], [[0], [0, 1]], [None] * 4, [0, 1]):
        with pytest.raises(ValueError, match="strata must be integer labels of shape"):
            flare.keep_fraction(score, 0.5, strata=wrong)


def test_numpy_arrays_are_accepted_as_scores():
    score = torch.tensor([3.0, 1.0, 2.0, 4.0])
    assert torch.equal(flare.keep_fraction(score.numpy(), 0.5), flare.keep_fraction(score, 0.5))
    assert torch.equal(flare.keep_below(score.numpy(), 2.0), flare.keep_below(score, 2.0))
