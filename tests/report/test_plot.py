from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from judged import judge

import flare

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from flare.results.drawing import RAMP

SHAPES = {"points": (2,), "series": (10,), "channels": (3, 20), "gray": (12, 12), "color": (3, 12, 12)}


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def made(shape=(10,), n=30, **changes):
    variance = torch.rand(n, *shape) * torch.logspace(-4, 0, n).view(-1, *[1] * len(shape))
    parts = {
        "variance": variance,
        "scores": {"trace": variance.flatten(1).sum(1)},
        "profile": torch.rand(n, 7),
    }
    return flare.Result(torch.randn(n, *shape), **(parts | changes))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_all_figures_are_labelled_and_draw_where_they_are_told(shape):
    result = made(shape)
    figure, axes = plt.subplots(1, 3)
    plots = [
        lambda ax: flare.plot.samples(result, ax=ax),
        lambda ax: flare.plot.samples(result, result.keep(0.3), ax),
        lambda ax: flare.plot.histogram(result, 0.3, ax=ax),
    ]
    for plot, ax in zip(plots, axes.flat, strict=True):
        assert plot(ax) is ax
        assert ax.get_xlabel()
        assert ax.get_ylabel() or ax.images
        assert ax.has_data()
    figure.canvas.draw()
    assert len(plt.get_fignums()) == 1
    assert flare.plot.samples(result).figure is not figure


def test_colors_are_ordered_by_score():
    for shape in ((2,), (10,)):
        result = made(shape, scores={"s": torch.linspace(1, 2, 30)[torch.randperm(30)]})
        drawn = flare.plot.samples(result).collections[0]
        colors = drawn.get_facecolors() if shape == (2,) else drawn.get_colors()
        xy = drawn.get_offsets() if shape == (2,) else np.stack([s[:2, 1] for s in drawn.get_segments()])
        # back from what is drawn to the sample, and so to its score
        rows = [
            int((result.samples[:, :2] - torch.tensor(np.asarray(at))).abs().sum(1).argmin()) for at in xy
        ]
        assert sorted(rows) == list(range(30))
        by_score = colors[np.argsort(result.score[rows].numpy())]
        np.testing.assert_allclose(by_score[0, :3], to_rgb(RAMP[0]), atol=0.02)
        np.testing.assert_allclose(by_score[-1, :3], to_rgb(RAMP[-1]), atol=0.02)
        assert (np.diff(by_score[:, 0]) >= 0).all()  # red rises all the way
        assert len(np.unique(by_score, axis=0)) > 25


def test_a_mask_leaves_colors_and_axes_alone():
    result = made()
    mask = result.keep(0.2)
    before, after = flare.plot.samples(result), flare.plot.samples(result, mask)
    assert len(after.collections[0].get_segments()) == 6
    assert before.get_ylim() == after.get_ylim()
    shades = {tuple(c) for c in before.collections[0].get_colors()[:, :3]}
    assert {tuple(c) for c in after.collections[0].get_colors()[:, :3]} <= shades


def test_the_ramp_gets_lighter_all_the_way():
    light = [np.dot([0.2126, 0.7152, 0.0722], np.array(to_rgb(c)) ** 2.2) for c in RAMP]
    assert (np.diff(light) > 0).all()


def test_histogram_marks_the_threshold_and_counts_all():
    result = made()
    ax = flare.plot.histogram(result, 0.5)
    kept = result.score[result.keep(0.5)]
    assert ax.lines[0].get_xdata()[0] == pytest.approx(float(kept.max()))
    assert ax.get_xscale() == "log"
    everything, below = ([bar.get_height() for bar in bars] for bars in ax.containers)
    assert (sum(everything), sum(below)) == (30, 15)
    flat = made(scores={"s": torch.ones(30)})
    assert flare.plot.histogram(flat).get_xscale() == "linear"


def test_histogram_has_real_data_behind_and_keeps_what_is_trusted():
    result = judge(made(n=200), size=50)
    ax = flare.plot.histogram(result)
    behind, outline = (patch for patch in ax.patches if hasattr(patch, "get_data"))
    counts = behind.get_data().values
    assert counts.sum() == pytest.approx(200)  # 50 real samples, scaled
    np.testing.assert_array_equal(counts, outline.get_data().values)
    everything, below = ([bar.get_height() for bar in bars] for bars in ax.containers)
    kept = result.trusted(0.05)
    assert (sum(everything), sum(below)) == (200, kept.sum())
    assert ax.lines[0].get_xdata()[0] == pytest.approx(float(result.verdict.z[kept].max()))
    assert ax.get_title() == f"{int(kept.sum())} of 200 kept: p > 0.05"
    assert ax.get_xlabel() == "verdict (combined z)"
    by_share = flare.plot.histogram(result, 0.25, score="trace")
    assert sum(bar.get_height() for bar in by_share.containers[1]) == 50
    assert not [patch for patch in by_share.patches if hasattr(patch, "get_data")]


def test_histogram_keeps_the_share_of_every_region():
    result = made(regions=torch.arange(30) % 3)
    ax = flare.plot.histogram(result, 0.3)
    kept = result.score[result.keep(0.3)]
    assert sum(bar.get_height() for bar in ax.containers[1]) == len(kept) == 9
    assert ax.lines[0].get_xdata()[0] == pytest.approx(float(kept.max()))
    assert ax.get_title() == "9 of 30 kept: the best 0.3 of every region"
    with pytest.raises(ValueError, match=r"keep must lie in \(0, 1\], got 30; did you mean 0\.3\?"):
        flare.plot.histogram(result, 30)


def test_what_cannot_be_drawn_says_why():
    with pytest.raises(ValueError, match=r"no scores.*flare.sample"):
        flare.plot.samples(made(scores={}))
    with pytest.raises(ValueError, match=r"mask must have shape \(30,\)"):
        flare.plot.samples(made(), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="keeps no sample"):
        flare.plot.samples(made(), torch.zeros(30, dtype=torch.bool))


def test_the_backend_is_left_alone(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("show was called"))
    before = mpl.get_backend()
    flare.plot.samples(made())
    assert mpl.get_backend() == before
