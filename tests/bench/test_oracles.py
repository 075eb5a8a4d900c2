from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import least_squares

from flare import bench
from flare.bench import oracles


@pytest.mark.parametrize(("name", "noise"), [("chirp", 0.02), ("damped", 0.03)])
def test_the_fit_is_no_worse_than_scipy_from_many_starts(name, noise):
    curve = oracles.CURVES[name]
    data = bench.datasets.make(name, 6, seed=3).double()
    off = data + 0.3 * torch.sin(torch.linspace(0, 40, data.shape[1])).double()
    x = torch.cat([data, off])
    params, ours = oracles.fit(curve, x)
    tau = torch.linspace(0, 1, x.shape[1], dtype=torch.float64)
    low, high = zip(*curve.ranges, strict=True)
    for i in range(len(x)):
        assert all(a <= p <= b for (a, b), p in zip(curve.ranges, params[i].tolist(), strict=True))
        best = math.inf
        g = torch.Generator().manual_seed(i)
        for _ in range(30):
            start = [a + (b - a) * torch.rand(1, generator=g).item() for a, b in curve.ranges]
            found = least_squares(
                lambda p, i=i: (curve.shape(torch.tensor(p), tau) - x[i]).numpy(), start, bounds=(low, high)
            )
            best = min(best, (2 * found.cost / len(tau)) ** 0.5)
        assert ours[i].item() <= best * (1 + 1e-4)
    assert ours[:6].mean().item() == pytest.approx(noise, rel=0.2)


def test_noiseless_curves_have_distance_zero_and_their_own_parameters():
    for name, curve in oracles.CURVES.items():
        g = torch.Generator().manual_seed(1)
        low, high = torch.tensor(curve.ranges, dtype=torch.float64).T
        true = low + (high - low) * torch.rand(200, len(low), generator=g, dtype=torch.float64)
        tau = torch.linspace(0, 1, 80 if name == "chirp" else 40, dtype=torch.float64)
        x = torch.stack([curve.shape(p, tau) for p in true])
        params, distance = oracles.fit(curve, x)
        assert distance.max() < 1e-4
        assert (params[:, :3] - true[:, :3]).abs().max() < 1e-2


def test_mixtures_have_exact_distances():
    for name, sd in (("grid", 0.05), ("sines", 0.1)):
        x = bench.datasets.make(name, 900, seed=2).double()
        centers, own = oracles.MIXTURES[name]
        assert own == sd
        by_hand = torch.stack([(x - center).norm(dim=1) / sd for center in centers]).amin(0)
        torch.testing.assert_close(oracles.distance(name, x), by_hand, rtol=1e-6, atol=1e-6)
        distance = oracles.distance(name, x)
        # the norm of d standard normals, to the nearest mode
        assert distance.square().mean().item() == pytest.approx(x.shape[1], rel=0.1)
        shares = oracles.modes(name, x).bincount() / len(x)
        assert shares.max() - shares.min() < 0.02
    assert oracles.distance("grid", torch.tensor([[0.5, 0.0]])).item() == pytest.approx(10)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'chirp'"):
        oracles.distance("chirps", torch.zeros(1, 80))
    with pytest.raises(ValueError, match="unknown mixture"):
        oracles.modes("chirp", torch.zeros(1, 80))
