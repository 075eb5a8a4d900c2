from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

import flare

seeds = st.integers(0, 2**32 - 1)


def draw(seed, n, size, d=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g).double(), torch.randn(size, d, generator=g).double()


def naive(x, data, k):
    """Distances and rows of the k nearest, one pair at a time."""
    found = []
    for a in x:
        rows = range(len(data))
        found.append(sorted((math.dist(a.tolist(), data[j].tolist()), j) for j in rows)[:k])
    distances, indices = ([[pair[place] for pair in row] for row in found] for place in (0, 1))
    return torch.tensor(distances, dtype=torch.float64), torch.tensor(indices)


@given(seeds, st.integers(1, 6), st.integers(6, 30))
def test_it_agrees_with_a_loop_over_all_pairs(seed, k, size):
    x, data = draw(seed, 4, size)
    found = flare.scores.neighbors(x, data, k)
    distances, indices = naive(x, data, k)
    torch.testing.assert_close(found.distances, distances, rtol=1e-12, atol=0)
    assert torch.equal(found.indices, indices)
    torch.testing.assert_close(found.score, distances.mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_agrees_with_sklearn_over_many_chunks(dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, 4, 5, generator=g).to(dtype)
    data = torch.randn(5000, 2, 4, 5, generator=g).to(dtype)
    found = flare.scores.neighbors(x, data, 5)
    oracle = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(data.flatten(1).double().numpy())
    distances, indices = oracle.kneighbors(x.flatten(1).double().numpy())
    torch.testing.assert_close(found.distances, torch.as_tensor(distances), rtol=1e-9, atol=0)
    assert torch.equal(found.indices, torch.as_tensor(indices))


@given(seeds, st.floats(-100, 100))
def test_order_translation_and_rotation_change_nothing(seed, shift):
    x, data = draw(seed, 5, 40)
    before = flare.scores.neighbors(x, data, 3)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(40, generator=g)
    shuffled = flare.scores.neighbors(x, data[order], 3)
    torch.testing.assert_close(shuffled.distances, before.distances, rtol=1e-12, atol=0)
    assert torch.equal(order[shuffled.indices], before.indices)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=g).double()).Q
    moved = flare.scores.neighbors(x @ rotation + shift, data @ rotation + shift, 3)
    torch.testing.assert_close(moved.distances, before.distances, rtol=1e-9, atol=1e-9)


def test_a_large_common_shift_changes_no_neighbor():
    x, data = ((values * 2**20).round() / 2**20 for values in draw(0, 20, 300))  # a shift by 2²⁷ is exact
    oracle = torch.cdist(x, data, compute_mode="donot_use_mm_for_euclid_dist").sort(1)
    found = flare.scores.neighbors(x + 2**27, data + 2**27, 5)
    assert torch.equal(found.indices, oracle.indices[:, :5])
    torch.testing.assert_close(found.distances, oracle.values[:, :5], rtol=1e-12, atol=0)


def test_distances_of_near_copies_are_accurate():
    # ‖a‖² + ‖b‖² − 2ab has an error of about 1e-13 here: distances below 1e-6 would be noise
    g = torch.Generator().manual_seed(0)
    x = 30 * torch.randn(20, 64, generator=g).double()
    others = 30 * torch.randn(300, 64, generator=g).double()
    step = torch.nn.functional.normalize(torch.randn(20, 64, generator=g).double(), dim=1)
    data = torch.cat([others, *(x + size * step for size in (1e-7, 3e-8, 1e-8))])
    found = flare.scores.neighbors(x, data, 3)
    sizes = torch.tensor([1e-8, 3e-8, 1e-7]).double().expand(20, 3)
    torch.testing.assert_close(found.distances, sizes, rtol=1e-5, atol=0)
    assert torch.equal(found.indices[:, 0], 340 + torch.arange(20))


def test_a_neighbor_among_many_near_copies_is_found():
    # 200 rows whose products cannot tell them apart: more than the candidates
    direction = torch.nn.functional.normalize(torch.ones(1, 8).double(), dim=1)
    x = torch.full((1, 8), 1.0).double()
    far = x + 1e3 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).double()
    sizes = 1e-9 * torch.arange(200, 0, -1).double()[:, None]
    found = flare.scores.neighbors(x, torch.cat([far, x + sizes * direction]), 4)
    assert found.indices.tolist() == [[249, 248, 247, 246]]
    torch.testing.assert_close(found.distances[0] * 1e9, torch.arange(1.0, 5).double(), rtol=1e-4, atol=0)


def test_equal_rows_are_ties():
    data = torch.tensor([[0.0], [1.0]]).repeat(50, 1)
    found = flare.scores.neighbors(torch.tensor([[0.25]]), data, 5)
    assert found.distances.tolist() == [[0.25] * 5]
    assert found.indices.tolist() == [[0, 2, 4, 6, 8]]


def test_features_define_the_distance():
    x, data = draw(3, 12, 50)
    found = flare.scores.neighbors(x, data, features=lambda batch: batch[:, :2] * 3)
    torch.testing.assert_close(
        found.distances, flare.scores.neighbors(x[:, :2] * 3, data[:, :2] * 3).distances
    )


def test_lost_samples_are_nan_and_change_nothing():
    x, data = draw(1, 8, 30)
    before = flare.scores.neighbors(x, data)
    x[2], x[5, 0] = torch.nan, torch.inf
    found = flare.scores.neighbors(x, data)
    good = torch.tensor([0, 1, 3, 4, 6, 7])
    assert found.score[[2, 5]].isnan().all()
    assert found.indices[:, 0][[2, 5]].tolist() == [-1, -1]
    torch.testing.assert_close(found.distances[good], before.distances[good])
    assert flare.scores.neighbors(torch.full((2, 3), torch.nan).double(), data).score.isnan().all()


def test_bad_input_is_named():
    x, data = draw(0, 4, 10)
    for call, message in [
        (lambda: flare.scores.neighbors(x, data, 11), "possible neighbors, 10, got 11; give more data"),
        (lambda: flare.scores.neighbors(x, data, 0), "k must be an integer of at least 1"),
        (lambda: flare.scores.neighbors(x, data[:, :2]), r"shape \(n, 2\), like the data, got \(4, 3\)"),
        (lambda: flare.scores.neighbors(x, data[:0]), "data is empty"),
        (
            lambda: flare.scores.neighbors(x, data, features=lambda b: b.sum(1)),
            r"batch of 10 samples .* got \(10,\)",
        ),
        (
            lambda: flare.scores.neighbors(x, data, features=lambda b: b / 0),
            r"features\(data\) has NaN or inf",
        ),
        (
            lambda: flare.scores.neighbors(x, data, features=lambda b: b / (len(b) - 4)),
            r"features\(samples\) has NaN or inf",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="data must be a tensor"):
        flare.scores.neighbors(x, data.tolist())
