"""`Result.plot`: what is drawn is compared with numbers that are computed in another way."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import matplotlib as mpl
import numpy as np
import pytest
import torch
from judged import fake, judge
from scipy.stats import binomtest, ks_2samp

import flare
from flare.results.result import Plot

mpl.use("Agg")
from matplotlib import pyplot as plt

SHAPES = {"points": (2,), "series": (10,), "channels": (3, 20), "gray": (12, 12), "color": (3, 12, 12)}
N = 40


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def made(shape=(2,), n=N, **changes):
    return judge(fake(shape, n, regions=torch.arange(n) % 2, **changes))


def options_of(what, result):
    worst = result.ranking > result.ranking.quantile(0.7)
    return {"bad": worst} if what == "trade_off" else {}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("what", get_args(Plot))
def test_every_plot_of_every_shape(what, shape):
    result = made(shape)
    given = options_of(what, result)
    figure, axes = plt.subplots(1, 2)
    ax = result.plot(what, ax=axes[1], **given)
    assert ax is axes[1]
    assert ax.has_data()
    assert ax.get_xlabel()
    assert ax.get_ylabel() or ax.images
    assert not axes[0].has_data()
    assert len(plt.get_fignums()) == 1  # the one that was given
    figure.canvas.draw()
    first, again = (np.asarray(_draw(result.plot(what, **given))) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def _draw(ax):
    ax.figure.canvas.draw()
    return ax.figure.canvas.buffer_rgba()


def test_the_names_are_the_functions_of_the_module():
    functions = [
        name for name, value in vars(flare.plot).items()
        if inspect.isfunction(value) and value.__module__ == flare.plot.__name__ and name[0] != "_"
    ]  # fmt: skip
    assert sorted(get_args(Plot)) == sorted(functions)
    with pytest.raises(ValueError, match="unknown plot 'sample'; did you mean 'samples'"):
        made().plot("sample")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'bad'"):
        made().plot("trade_off")


def points_of(ax):
    return {tuple(at) for at in np.asarray(ax.collections[0].get_offsets()).round(5)}


def test_kept_and_removed_are_side_by_side():
    result = made()
    left = result.plot("kept", keep=0.25)
    right = left.figure.axes[1]
    # the best 5 of the 20 samples of each region
    z = result.verdict.z.tolist()
    best = {row for region in (0, 1) for row in sorted(range(region, N, 2), key=z.__getitem__)[:5]}
    where = [tuple(at) for at in result.samples.double().numpy().round(5)]
    assert points_of(left) == {where[row] for row in best}
    assert points_of(right) == set(where) - points_of(left)
    assert (left.get_title(), right.get_title()) == ("10 kept", "30 removed")
    assert left.get_xlim() == right.get_xlim()
    assert left.get_position().x1 < right.get_position().x0


def test_kept_takes_a_mask_and_splits_the_axes():
    result = made()
    _, axes = plt.subplots(2, 2)
    before = axes[0, 1].get_position()
    left = flare.plot.kept(result, np.arange(N) < 7, axes[0, 1])
    right = left.figure.axes[4]
    assert left is axes[0, 1]
    assert (left.get_title(), right.get_title()) == ("7 kept", "33 removed")
    assert before.x0 - 1e-6 <= left.get_position().x0 < right.get_position().x1 <= before.x1 + 1e-6
    with pytest.raises(ValueError, match=r"no place in a grid.*plt\.subplots"):
        flare.plot.kept(result, ax=left.figure.add_axes((0, 0, 1, 1)))


def p_value_result(p, m):
    """A result with these p-values, compared with m real samples."""
    result = judge(fake(n=len(p)), size=m)
    return replace(result, verdict=replace(result.verdict, p_value=torch.as_tensor(p)))


def test_p_values_are_drawn_as_their_distribution():
    result = made()
    ax = result.plot("p_values")
    p = np.sort(result.p_value.numpy())
    x, y = next(line for line in ax.lines if line.get_label().startswith("samples")).get_data()
    np.testing.assert_array_equal(np.asarray(x)[1:], p)
    np.testing.assert_allclose(np.asarray(y)[1:], np.arange(1, N + 1) / N)
    np.testing.assert_array_equal(ax.lines[0].get_data(), [[0, 1], [0, 1]])
    assert ax.get_legend_handles_labels()[1] == ["95% band", "real data (99)", f"samples ({N})"]
    by_score = result.plot("p_values", score="neighbors")
    share = (result.verdict.p_values["neighbors"] <= 0.05).double().mean()
    assert by_score.get_title().startswith(f"{share:.1%} have p ≤ 0.05; real data: ")
    training = judge(fake(), held_out=False).plot("p_values")
    assert training.get_legend_handles_labels()[1][1] == "training data (99)"


def band_of(ax):
    """Half the height of the band in the middle of the axes."""
    corners = ax.collections[0].get_paths()[0].vertices
    middle = corners[np.isclose(corners[:, 0], 0.5)][:, 1]
    assert middle.min() + middle.max() == pytest.approx(1)
    return float(middle.max() - 0.5)


@pytest.mark.parametrize(("n", "m"), [(300, 99), (99, 300), (200, 199), (40, 999)])
def test_the_band_is_that_of_the_two_sample_test(n, m):
    width = band_of(flare.plot.p_values(p_value_result(np.full(n, 0.5), m)))
    steps = math.lcm(n, m)  # distances of two distributions are multiples of 1/lcm

    def p_of(distance):
        """The p-value of a distance: a shift between a grid of m real values and one of n values."""
        real, values = (np.arange(count) / count for count in (m, n))
        return ks_2samp(real, values + distance, method="exact").pvalue

    assert p_of(width - 0.02) > 0.05 > p_of(width + 0.02 + 1 / steps)


def test_the_band_holds_95_of_100_curves_of_real_data():
    n, m, runs = 80, 120, 1000
    width = band_of(flare.plot.p_values(p_value_result(np.full(n, 0.5), m)))
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(runs):
        real, fresh = draw.random(m), draw.random(n)
        p = np.sort([(1 + (real >= value).sum()) / (1 + m) for value in fresh])
        above = np.arange(1, n + 1) / n - p
        below = p - np.arange(n) / n
        inside += max(above.max(), below.max()) <= width
    assert 0.93 <= inside / runs <= 0.97


@pytest.mark.parametrize(("n", "m"), [(50, 99), (200, 39)])
def test_the_title_has_the_exact_interval_of_real_data(n, m):
    k = (m + 1) // 20
    # all orders of n + m values are equally likely: count those with x samples above the k-th real value
    chance = [
        Fraction(math.comb(x + k - 1, x) * math.comb(n - x + m - k, n - x), math.comb(n + m, n))
        for x in range(n + 1)
    ]
    assert sum(chance) == 1
    total = np.cumsum(np.array([float(c) for c in chance]))
    few, many = (int((total >= level - 1e-12).argmax()) for level in (0.025, 0.975))
    ax = flare.plot.p_values(p_value_result(np.linspace(0.01, 1, n), m))
    assert ax.get_title().endswith(f"; real data: {few / n:.1%} to {many / n:.1%}")


def test_few_real_samples_have_no_interval():
    with pytest.warns(UserWarning, match="only 10 samples"):
        result = judge(fake(), size=10)
    assert flare.plot.p_values(result).get_title() == "0.0% have p ≤ 0.05"


def test_the_trade_off_is_that_of_counting():
    n = 100
    result = made(n=n)
    bad = torch.rand(n, generator=torch.Generator().manual_seed(2)) < result.verdict.z.sigmoid()
    ax = result.plot("trade_off", bad=bad)
    order = sorted(range(n), key=result.verdict.z.tolist().__getitem__)
    halves = [[row for row in order if row % 2 == region] for region in (0, 1)]
    ways = {
        "verdict, by rank": lambda count: order[:count],
        "verdict, by region": lambda count: halves[0][: count // 2] + halves[1][: count // 2],
    }
    lines = {line.get_label(): line for line in ax.lines}
    base = int(bad.sum()) / n
    assert list(lines) == ["verdict, by region", "verdict, by rank", f"at random ({base:.1%})"]
    assert set(lines[f"at random ({base:.1%})"].get_ydata()) == {base}
    for band, (name, kept) in zip(ax.collections[::-1], ways.items(), strict=True):
        shares, rates = lines[name].get_data()
        corners = band.get_paths()[0].vertices
        assert len(shares) == 50
        for share, rate in zip(shares, rates, strict=True):
            count = round(share * n)
            wrong = sum(bool(bad[row]) for row in kept(count))
            assert rate == pytest.approx(wrong / count)
            interval = binomtest(wrong, count).proportion_ci(0.95, method="exact")
            here = corners[np.isclose(corners[:, 0], share)][:, 1]
            assert (here.min(), here.max()) == pytest.approx((interval.low, interval.high))


def test_a_trade_off_without_regions_or_bad_samples():
    plain = fake(n=30)
    ax = plain.plot("trade_off", bad=[False] * 30)
    assert [line.get_label() for line in ax.lines] == ["trace, by rank", "at random (0.0%)"]
    assert ax.get_ylim()[1] > 0


def test_ellipses_are_level_sets_of_the_covariance():
    draw = torch.Generator().manual_seed(3)
    roots = torch.randn(N, 2, 2, generator=draw)
    covariance = roots @ roots.mT
    result = made(covariance=covariance, variance=covariance.diagonal(dim1=1, dim2=2))
    drawn = result.plot("variance", width=1.5).collections[1]
    assert len(drawn.get_offsets()) == N
    turn = np.linspace(0, 2 * np.pi, 9)
    for at, width, height, angle in zip(
        drawn.get_offsets(), drawn.get_widths(), drawn.get_heights(), drawn.get_angles(), strict=True
    ):
        row = int((result.samples - torch.tensor(at)).abs().sum(1).argmin())
        tilt = np.deg2rad(angle)
        rotation = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
        edge = rotation @ np.stack([width / 2 * np.cos(turn), height / 2 * np.sin(turn)])
        lengths = (edge * np.linalg.solve(covariance[row].double().numpy(), edge)).sum(0)
        np.testing.assert_allclose(lengths, 1.5**2, rtol=1e-3)


def test_ellipses_without_covariance_are_parallel_to_the_axes():
    result = made()
    drawn = result.plot("variance").collections[1]
    for at, *size, angle in zip(
        drawn.get_offsets(), drawn.get_widths(), drawn.get_heights(), drawn.get_angles(), strict=True
    ):
        row = int((result.samples - torch.tensor(at)).abs().sum(1).argmin())
        assert angle % 90 == pytest.approx(0)
        np.testing.assert_allclose(sorted(size), sorted(4 * result.variance[row].sqrt().numpy()), rtol=1e-5)


def test_bands_are_around_the_best_the_middle_and_the_worst_sample():
    result = made((10,), n=41)
    ax = result.plot("variance", width=3)
    order = result.verdict.z.argsort()
    for place, row in enumerate((order[0], order[20], order[40])):
        middle, reach = result.samples[row].numpy(), 3 * result.variance[row].sqrt().numpy()
        np.testing.assert_allclose(ax.lines[place].get_ydata(), middle)
        corners = ax.collections[place].get_paths()[0].vertices
        for x in range(10):
            here = corners[corners[:, 0] == x][:, 1]
            assert here.min() == pytest.approx(middle[x] - reach[x], abs=1e-5)
            assert here.max() == pytest.approx(middle[x] + reach[x], abs=1e-5)
    assert ax.get_title() == "± 3 standard deviations"


def test_a_map_is_next_to_its_image():
    result = made((1, 12, 12), n=30)
    page = np.asarray(result.plot("variance").images[0].get_array())
    # a tile is a frame of 1 pixel, the image, a gap, the map, a frame, and a gap; 4 tiles per row
    tile = page[:14, 0:27]
    best = int(result.verdict.z.argmin())
    gray, colors = tile[1:13, 1:13], tile[1:13, 14:26]
    assert np.corrcoef(gray[..., 0].ravel(), result.samples[best, 0].numpy().ravel())[0, 1] > 0.99
    np.testing.assert_array_equal(tile[1:13, 13], 1.0)
    spread = result.variance[best, 0].sqrt().numpy()
    redder = colors[..., 0].ravel()[spread.ravel().argsort()]
    assert (np.diff(redder) >= 0).all()  # red rises with the standard deviation
    assert page.shape == (6 * 15, 4 * 28, 3)


def test_outliers_of_a_map_do_not_darken_the_others():
    variance = torch.full((20, 8, 8), 0.01)
    variance[0] = 1e6
    result = made((8, 8), n=20, variance=variance)
    (bar,) = [ax for ax in result.plot("variance").figure.axes if ax.get_ylabel() == "standard deviation"]
    assert bar.get_ylim()[1] < 1e4
    flat = made((8, 8), n=20, variance=torch.zeros(20, 8, 8))
    assert flat.plot("variance").has_data()


def test_lost_samples_are_left_out():
    result = made()
    samples = result.samples.clone()
    samples[3] = torch.nan
    result = replace(result, samples=samples)
    bad = torch.arange(N) == 3
    assert len(result.plot("variance").collections[1].get_offsets()) == N - 1
    assert set(result.plot("trade_off", bad=bad).lines[0].get_ydata()) == {0.0}
    left = result.plot("kept", keep=torch.arange(N) < 10)
    assert (left.get_title(), left.figure.axes[1].get_title()) == ("9 kept", "30 removed")
    x = next(line for line in result.plot("p_values").lines if "samples" in str(line.get_label())).get_xdata()
    assert len(x) == N  # one more than there are p-values


@pytest.mark.parametrize(
    ("what", "changes", "options", "words"),
    [
        ("kept", {}, {"keep": 50}, r"keep must lie in \(0, 1\), got 50; did you mean 0\.5\?"),
        ("kept", {}, {"keep": torch.ones(3, dtype=torch.bool)}, r"keep, as a mask, must have shape \(40,\)"),
        ("kept", {}, {"keep": torch.ones(40, dtype=torch.bool)}, "40 of 40 samples are kept, so one side is"),
        ("samples", {}, {"mask": torch.ones(40)}, r"the mask must .* be bool, got \(40,\) and torch.float32"),
        ("p_values", {"verdict": None}, {}, r"has no p-values.*flare\.Scorer"),
        ("p_values", {}, {"score": "trace"}, r"trace has no p-values"),
        ("p_values", {}, {"score": "neighbor"}, "did you mean 'neighbors'"),
        ("trade_off", {}, {"bad": torch.zeros(39, dtype=torch.bool)}, r"bad must have shape \(40,\)"),
        ("trade_off", {}, {"bad": torch.zeros(40)}, r"bad must .* x > 0\.5"),
        ("variance", {"variance": None}, {}, "no variance.*directions=16"),
        ("variance", {"variance": torch.ones(40, 3)}, {}, r"variance must have the shape of the samples"),
        ("variance", {}, {"width": -1}, "width must be a positive number of standard deviations, got -1"),
        ("variance", {}, {"width": math.nan}, "width must be a positive"),
        ("samples", {"samples": torch.ones(40, 1, 2, 3, 4)}, {}, "cannot be drawn; reshape"),
        ("variance", {"scores": {}, "verdict": None}, {}, "no scores to rank"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_says_why_and_leaves_no_figure(what, changes, options, words):
    result = replace(made(), **changes)
    with pytest.raises(ValueError, match=words):
        result.plot(what, **options)
    assert plt.get_fignums() == []
