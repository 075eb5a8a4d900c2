from __future__ import annotations

import math

import pytest
import torch

from flare.bench import datasets


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("grid", (54_000, 2)),
        ("sines", (5_000, 10)),
        ("chirp", (8_000, 80)),
        ("damped", (8_000, 40)),
        ("digits", (1_297, 1, 8, 8)),
    ],
)
def test_shapes_and_seeds(name, shape):
    data = datasets.make(name)
    assert data.shape == shape
    assert data.dtype == torch.float32
    assert torch.equal(data, datasets.make(name))
    assert not torch.equal(data, datasets.make(name, seed=1))


def test_the_grid_has_nine_gaussians_of_6000():
    distance, mode = torch.cdist(datasets.make("grid"), datasets.GRID_CENTERS).min(1)
    assert mode.bincount().tolist() == [6000] * 9
    assert (distance**2).mean().item() == pytest.approx(2 * 0.05**2, rel=0.02)
    assert sorted(map(tuple, datasets.GRID_CENTERS.tolist())) == sorted(
        (float(a), float(b)) for a in (-1, 0, 1) for b in (-1, 0, 1)
    )


def test_the_sines_are_two_waves_with_noise():
    data = datasets.make("sines")
    wave = torch.sin(2 * math.pi * torch.arange(10) / 9)
    sign = torch.sign(data @ wave)
    assert (sign > 0).sum() == 2500
    rest = data - sign[:, None] * wave
    assert rest.std().item() == pytest.approx(0.1, rel=0.02)
    assert rest.mean(0).abs().max() < 0.01


@pytest.mark.parametrize(("name", "noise"), [("chirp", 0.02), ("damped", 0.03)])
def test_chirps_and_damped_sines_lie_on_their_manifold(name, noise):
    """The best parameters within the stated ranges, by least squares, leave only the noise."""
    from scipy.optimize import least_squares

    data = datasets.make(name, 12, seed=5).double().numpy()
    tau = torch.linspace(0, 1, data.shape[1]).double().numpy()
    if name == "chirp":
        ranges = [(0.6, 1.4), (0.5, 1.0), (2.0, 5.0)]

        def curve(p):
            return p[0] * torch.sin(2 * math.pi * torch.tensor(p[1] * tau + p[2] * tau**2 / 2)).numpy()
    else:
        ranges = [(0.8, 1.3), (0.8, 1.5), (1.0, 5.0), (0.0, 1.0)]  # the phase counts whole turns

        def curve(p):
            wave = torch.sin(2 * math.pi * torch.tensor(p[1] * tau + p[3])).numpy()
            return p[0] * torch.exp(torch.tensor(-p[2] * tau)).numpy() * wave

    low, high = zip(*ranges, strict=True)
    generator = torch.Generator().manual_seed(0)
    for series in data:
        best = math.inf
        for _ in range(40):
            start = [a + (b - a) * torch.rand(1, generator=generator).item() for a, b in ranges]
            fit = least_squares(lambda p, s=series: curve(p) - s, start, bounds=(low, high))
            best = min(best, (2 * fit.cost / len(tau)) ** 0.5)
            if best < 1.3 * noise:
                break
        assert best == pytest.approx(noise, rel=0.35)


def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    found = load_digits()
    images = datasets.digits(1797, seed=4)
    assert images.shape == (1797, 1, 8, 8)
    assert images.abs().max() == 1
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(images[:, 0].double() * 8 + 8, torch.as_tensor(found.images)[order])
    assert torch.equal(datasets.digits(seed=4), images[:1297])
    with pytest.raises(ValueError, match="n must be at most 1,797, the number of images, got 1,798"):
        datasets.digits(1798)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'sines'"):
        datasets.make("sine")
    with pytest.raises(ValueError, match="n must be"):
        datasets.make("grid", 0)


def test_a_larger_grid_and_one_without_a_mode():
    x = datasets.make("grid", 2_500, side=5)
    centers = torch.cartesian_prod(*[torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])] * 2)
    nearest = torch.cdist(x, centers)
    assert nearest.argmin(1).bincount(minlength=25).tolist() == [100] * 25
    assert nearest.min(1).values.max() < 6 * 0.05
    shares = torch.cdist(
        datasets.make("grid", 800, without=[4]),
        torch.tensor([[a, b] for a in (-1.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0)]),
    ).argmin(1)
    assert shares.bincount(minlength=9).tolist() == [100, 100, 100, 100, 0, 100, 100, 100, 100]
    assert torch.equal(datasets.make("grid", 90, 3), datasets.make("grid", 90, 3, side=3, without=[]))
    with pytest.raises(ValueError, match="leave at least one"):
        datasets.make("grid", 9, without=range(9))
