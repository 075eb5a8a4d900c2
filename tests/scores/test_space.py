"""Distances between features against brute force, and sketches against the laws that they obey."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from flare.scores.space import Space, sketch


def draw(n, p, seed=0, dtype=torch.float32):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def brute(points, features, k=5):
    """Sorted distances and rows, ties in the order of the rows."""
    table = cdist(features.double().numpy(), points.double().numpy())
    order = np.argsort(table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, order, axis=1), order


@given(
    st.integers(1, 60), st.integers(1, 8), st.integers(0, 99), st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    st.sampled_from([torch.float16, torch.float32, torch.float64]), st.integers(1, 9),
)  # fmt: skip
def test_brute_force_gives_the_same(n, p, seed, offset, dtype, k):
    if dtype == torch.float16:
        offset = min(offset, 1e3)
    points = (draw(n, p, seed, torch.float64) + offset).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    near = points[:: max(1, n // 3)].to(wide)
    features = torch.cat([draw(4, p, seed + 1, wide) + offset, near, near * (1 + 1e-6)])
    found = Space(points).find(features, k)
    distances, rows = brute(points, features, k)
    assert found.distances.shape == (len(features), min(k, n))
    assert found.distances.dtype == torch.float64
    np.testing.assert_allclose(found.distances, distances, rtol=1e-6, atol=1e-12)
    chosen = cdist(features.double(), points.double())
    np.testing.assert_allclose(
        np.take_along_axis(chosen, found.indices.numpy(), axis=1), distances, rtol=1e-6, atol=1e-12
    )
    np.testing.assert_allclose(found.score, distances.mean(1), rtol=1e-6, atol=1e-12)
    if offset == 0:
        assert np.array_equal(found.indices, rows)


@pytest.mark.parametrize("copies", [3, 30])
def test_duplicates_are_all_neighbors_and_the_first_rows_come_first(copies):
    points = torch.cat([draw(10, 3, 1), draw(1, 3, 2).expand(copies, 3), draw(10, 3, 3)])
    features = torch.stack([points[10], draw(1, 3, 4)[0]])
    found = Space(points).find(features, 3)
    assert found.indices[0].tolist() == [10, 11, 12]
    assert found.distances[0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(found.distances, brute(points, features, 3)[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_of_many_equal_rows_come_first_in_many_dimensions(dtype):
    """Matrix products find any of them, and round distances to the precision of the data."""
    for seed in range(40):
        rows = torch.randint(4, (569,), generator=torch.Generator().manual_seed(seed))
        points = draw(4, 37, seed, dtype)[rows]
        features = torch.cat([points[:5], points[:10] + 0.01 * draw(10, 37, seed + 50, dtype)])
        assert np.array_equal(Space(points).find(features).indices, brute(points, features)[1])


def test_a_scale_applies_to_samples_alone():
    points, features, scale = draw(30, 4), draw(5, 4, 1), torch.tensor([0.5, 0.0, 2.0, 10.0])
    found = Space(points * scale, scale).find(features)
    np.testing.assert_allclose(found.distances, brute(points * scale, features * scale)[0], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_training_samples_than_five(count):
    points, features = draw(count, 4), draw(3, 4, 1)
    expected = cdist(features, points).mean(1)
    np.testing.assert_allclose(Space(points).score(features), expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_have_no_score(bad):
    points, features = draw(30, 4), draw(5, 4, 1)
    whole = Space(points).score(features)
    features[1, 2] = features[3, 0] = bad
    scores = Space(points).score(features)
    assert scores.isnan().tolist() == [False, True, False, True, False]
    assert torch.equal(scores[::2], whole[::2])
    assert Space(points).score(features[[1, 3]]).isnan().all()


def test_features_that_the_scale_makes_infinite_have_no_score():
    features = draw(3, 4, 1)
    features[1] = 1e36
    scores = Space(draw(30, 4), torch.full((4,), 1e5)).score(features)
    assert scores.isnan().tolist() == [False, True, False]


def test_a_shrunk_space_keeps_the_order_of_scores():
    points, features = draw(200, 16), draw(100, 16, 1)
    space = Space(points, torch.ones(16))
    small, scores = space.shrink(features)
    assert small.points.dtype == torch.float16
    torch.testing.assert_close(scores, small.score(features), rtol=0, atol=0)
    assert small.scale is space.scale
    ours, theirs = small.score(features), torch.from_numpy(brute(points, features)[0].mean(1))
    assert spearmanr(ours, theirs).statistic >= 0.999
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0)
    assert small.shrink(features)[0] is small


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 1e5,  # overflows
        lambda x: x * 1e-9,  # vanishes
        lambda x: x + 1e4,  # loses all differences
        lambda x: x * 0,  # has no order at all
    ],
    ids=["large", "small", "offset", "constant"],
)
def test_a_space_that_half_precision_would_change_is_not_shrunk(change):
    space = Space(change(draw(50, 8)))
    assert space.shrink(change(draw(20, 8, 1)))[0] is space


def test_a_space_is_not_shrunk_without_samples_to_compare():
    space = Space(draw(50, 8))
    assert space.shrink(draw(1, 8, 1))[0] is space
    assert space.shrink(draw(9, 8, 1) * torch.nan)[0] is space


def flat(n, seed, dimensions=20, size=300):
    """Points near a plane of few dimensions, far from the origin."""
    axes = draw(dimensions, size, 99)
    return draw(n, dimensions, seed) @ axes + 3 + 1e-3 * draw(n, size, seed + 1)


def test_points_near_a_plane_are_kept_by_their_principal_axes():
    points, features = flat(400, 1), flat(60, 3)
    features[:20] += 5 * draw(20, 300, 7)  # off the plane, where doubtful samples are
    scale = draw(1, 300, 8)[0].abs() + 0.5
    small, scores = Space(points * scale, scale).shrink(features)
    assert small.points.shape == (400, 65)
    assert small.axes.is_contiguous()  # as it is loaded, so that products round alike
    assert small.points.dtype == torch.float16
    expected = torch.from_numpy(brute(points * scale, features * scale)[0].mean(1))
    torch.testing.assert_close(scores, expected, rtol=0.01, atol=0)
    again = small.score(points[:30])  # float16 apart, a training sample has distance 0 to itself
    assert (small.find(points[:30]).distances[:, 0] < 0.01 * again).all()


@pytest.mark.parametrize("factor", [1e5, 1e15, 1e30])
def test_large_features_have_axes_or_keep_all_numbers(factor):
    points, features = flat(400, 1) * factor, flat(60, 3) * factor
    _, scores = Space(points).shrink(features)
    expected = torch.from_numpy(brute(points, features)[0].mean(1))
    torch.testing.assert_close(scores, expected, rtol=0.01, atol=0)


def test_points_in_half_precision_have_axes():
    small, scores = Space(flat(400, 1).half()).shrink(flat(60, 3))
    assert small.axes is not None
    torch.testing.assert_close(scores, small.score(flat(60, 3)), rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_distances_along_axes_are_never_larger(seed):
    points, features = draw(300, 200, seed), 2 * draw(40, 200, seed + 50)
    full = torch.cdist(features.double(), points.double())
    for small in Space(points)._smaller():
        if small.axes is not None:
            own = torch.cdist(small._place(features).double(), small.points.double())
            assert (own <= full * (1 + 1e-3)).all()


def test_points_without_a_plane_keep_all_features():
    space = Space(draw(300, 300))
    assert space.shrink(draw(100, 300, 1))[0].axes is None


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99), st.floats(-3, 3))
def test_a_sketch_is_linear(p, size, seed, c):
    a, b = draw(3, p, 1, torch.float64), draw(3, p, 2, torch.float64)
    together = sketch(a + c * b, size, seed)
    assert together.shape == (3, min(p, size))
    apart = sketch(a, size, seed) + c * sketch(b, size, seed)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    # rows do not mix
    assert torch.equal(sketch(a[1:2], size, seed), sketch(a, size, seed)[1:2])


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_a_sketch_adds_every_feature_to_one_sum(p, size, seed):
    matrix = sketch(torch.eye(p, dtype=torch.float64), size, seed)
    assert matrix.abs().sum(1).tolist() == [1.0] * p
    assert (matrix != 0).sum(1).tolist() == [1] * p
    if p <= size:
        assert torch.equal(matrix, torch.eye(p, dtype=torch.float64))


@settings(max_examples=5)
@given(st.integers(10, 60), st.integers(4, 9), st.integers(0, 9))
def test_a_sketch_keeps_distances_on_average(p, size, seed):
    """E‖S(a − b)‖² = ‖a − b‖², with a variance of at most 2‖a − b‖⁴/size."""
    a, b = draw(1, p, seed, torch.float64), draw(1, p, seed + 100, torch.float64)
    truth, count = float((a - b).square().sum()), 2000
    found = torch.stack([(sketch(a, size, k) - sketch(b, size, k)).square().sum() for k in range(count)])
    deviation = truth * (2 / size / count) ** 0.5
    assert abs(float(found.mean()) - truth) <= 4.5 * deviation
    assert float(found.var()) <= 1.3 * 2 * truth**2 / size
