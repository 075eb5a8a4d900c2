from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

import flare
from flare.results.filters import assign_regions, find_regions, keep_best
from flare.results.result import fill_lost, join
from flare.storage import checkpoint

seeds, shares = st.integers(0, 2**32 - 1), st.floats(0.01, 1)


def make(score, regions=None):
    score = torch.as_tensor(score)
    regions = None if regions is None else torch.as_tensor(regions)
    return flare.Result(torch.arange(2.0 * len(score)).view(-1, 2), scores={"a": score}, regions=regions)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), shares)
def test_by_rank_the_lowest_are_kept(values, share):
    score = torch.tensor(values)
    mask = make(score, torch.arange(len(values)) % 3).keep(share, by="rank")
    assert mask.sum() == max(1, round(share * len(values)))
    assert torch.equal(mask, make(score).keep(share)), "a result without regions is one region"
    if not mask.all():
        assert score[mask].max() <= score[~mask].min()


def hand_out_seats(score, regions, share):
    """Largest remainders one seat at a time, from the definition; kept indices."""
    scored = [i for i in range(len(score)) if not np.isnan(score[i])]
    queues = {r: sorted((i for i in scored if regions[i] == r), key=lambda i: (score[i], i)) for r in regions}
    queues = {r: queue for r, queue in queues.items() if queue}
    kept, claims = [], {}
    for r, queue in queues.items():
        whole = int(np.floor(round(share * len(queue), 9)))
        claims[r] = share * len(queue) - whole
        kept += queue[:whole]
        queues[r] = queue[whole:]
    for _ in range(max(1, round(share * len(scored))) - len(kept)):
        best = max(claims.values())
        tied = [r for r, claim in claims.items() if claim > best - 1e-9 and queues[r]]
        r = min(tied, key=lambda r: (score[queues[r][0]], queues[r][0]))
        kept.append(queues[r].pop(0))
        del claims[r]
    return kept


@given(
    seeds,
    st.integers(1, 60),
    st.integers(1, 8),
    st.sampled_from([0.05, 0.1, 0.25, 0.29, 0.5, 0.8, 1.0]) | shares,
)
def test_every_region_keeps_its_share(seed, n, groups, share):
    draw = np.random.default_rng(seed)
    score, regions = draw.integers(0, 9, n).astype(float), draw.integers(0, groups, n)  # with ties
    score[1:][draw.random(n - 1) < 0.2] = np.nan
    mask = make(score, regions).keep(share)
    scored = ~np.isnan(score)
    assert mask.sum() == max(1, round(share * scored.sum()))
    assert sorted(mask.nonzero().flatten().tolist()) == sorted(hand_out_seats(score, regions, share))
    for label in set(regions):
        own = (regions == label) & scored
        assert abs(int(mask[own].sum()) - share * own.sum()) < 1 + 1e-6


def test_few_samples_of_many_regions_are_the_most_plausible_ones():
    score = torch.tensor([5.0, 3.0, 4.0, 1.0, 2.0])
    assert make(score, torch.arange(5)).keep(0.4).tolist() == [False, False, False, True, True]
    assert make(score, torch.arange(5)).keep(0.01).sum() == 1


@given(seeds, st.integers(1, 9), shares)
def test_lost_samples_do_not_change_the_mask_of_the_others(seed, lost, share):
    g = torch.Generator().manual_seed(seed)
    score, regions = torch.rand(40, generator=g), torch.randint(3, (40,), generator=g)
    score[torch.randperm(40, generator=g)[:lost]] = torch.nan
    regions[score.isnan()] = -1
    mask, found = make(score, regions).keep(share), ~score.isnan()
    assert not mask[~found].any()
    assert torch.equal(mask[found], make(score[found], regions[found]).keep(share))


def test_bad_input_is_named():
    score = torch.rand(5)
    for call, message in [
        (lambda: make(score).keep(0.0), r"share must lie in \(0, 1\], got 0\.0\.$"),
        (lambda: make(score).keep(50), r"share must lie in \(0, 1\], got 50; did you mean 0\.5\?$"),
        (
            lambda: make(score).keep(0.5, by="regoin"),
            "unknown by 'regoin'; did you mean 'region'.*rank, region",
        ),
        (lambda: make([1.0, torch.inf]).keep(0.5), "1 of 2 scores are infinite"),
        (lambda: make([torch.nan] * 3).keep(0.5), "all 3 scores are NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_regions_find_modes_that_lie_apart():
    x, truth = flare.bench.datasets.make("grid", 900), torch.arange(900) % 9
    centers = find_regions(x, count=9)
    labels = assign_regions(x, centers)
    assert centers.shape == (9, 2)
    assert centers.dtype == torch.float64
    assert all(len(labels[truth == mode].unique()) == 1 for mode in range(9))
    assert len(labels.unique()) == 9
    assert torch.equal(find_regions(x, count=9), centers)


def test_few_or_equal_samples_have_fewer_regions():
    assert len(find_regions(torch.rand(25, 3))) == 2
    assert len(find_regions(torch.rand(3, 3))) == 1
    assert len(find_regions(torch.rand(800, 1, 3))) == 16
    assert find_regions(torch.ones(200, 2)).tolist() == [[1.0, 1.0]]
    assert find_regions(torch.rand(20_000, 2)).shape == (16, 2)


@given(seeds, st.sampled_from([0.0, 2.0**27, -(2.0**30)]))
def test_a_sample_belongs_to_the_nearest_center(seed, shift):
    g = torch.Generator().manual_seed(seed)
    x, centers = torch.randn(50, 2, 3, generator=g).double(), torch.randn(6, 6, generator=g).double()
    x[7, 0, 0], x[9] = torch.inf, torch.nan
    labels = assign_regions(x + shift, centers + shift)
    expected = (x.flatten(1)[:, None] - centers).square().sum(2).argmin(1)
    expected[[7, 9]] = -1
    assert torch.equal(labels, expected)


def test_regions_do_not_depend_on_threads():
    code = (
        "import json, torch; from flare.results.filters import find_regions; "
        "x = torch.randn(6000, 5, generator=torch.Generator().manual_seed(0)); "
        "print(json.dumps(find_regions(x).tolist()))"
    )
    found = [
        json.loads(
            subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": n})
        )
        for n in ("1", "2")
    ]
    assert found[0] == found[1]
    x = torch.randn(6000, 5, generator=torch.Generator().manual_seed(0)).double().numpy()
    inertia = ((x[:, None] - np.array(found[0])) ** 2).sum(2).min(1).sum()
    assert inertia <= 1.02 * KMeans(16, n_init=10, random_state=1).fit(x).inertia_


def test_regions_travel_with_their_samples(tmp_path):
    one = make([3.0, 1.0, 2.0, 4.0], [0, 5, 5, 0])
    assert one.keep(0.5).tolist() == [True, True, False, False]
    assert one[[2, 0]].regions.tolist() == [5, 0]
    assert join([one[:1], one[1:]]) == one
    lost = flare.Result(torch.full((2, 2), torch.nan))
    assert join([lost, one]).regions.tolist() == [-1, -1, 0, 5, 5, 0]
    assert fill_lost(one, torch.tensor([True, False, False, False])).regions.tolist() == [-1, 5, 5, 0]
    assert replace(one, regions=None) != one
    assert replace(one, regions=one.regions + 1) != one
    for suffix in ("safetensors", "npz"):
        one.save(tmp_path / f"r.{suffix}")
        assert flare.Result.load(tmp_path / f"r.{suffix}") == one
    assert one.to_numpy()["regions"].tolist() == [0, 5, 5, 0]


def test_files_without_regions_load_and_bad_ones_are_named(tmp_path):
    one = make([3.0, 1.0], [0, 1])
    tensors = {"samples": one.samples, "score.a": one.score}
    header = {"format": 1, "scores": ["a"], "about": {}}  # as 0.4 wrote it
    checkpoint.save(tmp_path / "old.safetensors", tensors, header)
    assert flare.Result.load(tmp_path / "old.safetensors").regions is None
    for regions in (torch.zeros(2), torch.zeros(3, dtype=torch.long)):
        checkpoint.save(tmp_path / "bad.safetensors", tensors | {"regions": regions}, header)
        with pytest.raises(ValueError, match=r"bad\.safetensors has regions as .* must be int64 of shape"):
            flare.Result.load(tmp_path / "bad.safetensors")


def test_equal_remainders_go_to_the_more_plausible_sample():
    # quotas 0.7 and 7.7: one seat is left, and the remainders differ by rounding alone
    mask = keep_best(torch.arange(12.0), 0.7, torch.tensor([0] + [1] * 11))
    assert mask.tolist() == [True] * 8 + [False] * 4
