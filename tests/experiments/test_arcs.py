"""Two arcs: real points are near, hand-made ones are as far as a ruler says."""

from __future__ import annotations

import math

import pytest
import torch

from experiments import arcs


def test_real_points_are_good_and_know_their_arc():
    x, labels = arcs.make(2_000, seed=7)
    assert x.shape == (2_000, 2)
    assert float(x.abs().max()) < 1
    assert arcs.bad(x).double().mean() < 0.005
    assert (arcs.classes(x) == labels).double().mean() > 0.995
    assert torch.equal(x, arcs.make(2_000, seed=7)[0])


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ((0.0, 2.0), arcs.RADIUS),  # above the top of the first arc
        ((0.0, 0.0), arcs.RADIUS),  # its center
        ((1.5, 0.0), 0.5 * arcs.RADIUS),  # beside an end
        ((1.0, -0.5), 0.5 * arcs.RADIUS),  # below an end
        ((math.cos(1), math.sin(1)), 0.0),  # on it
    ],
)
def test_the_distance_from_an_arc(direction, expected):
    point = arcs.CENTERS[0] + arcs.RADIUS * torch.tensor(direction)
    assert float(arcs.distances(point[None])[0, 0]) == pytest.approx(expected, abs=1e-6)


def test_the_second_arc_is_the_first_one_turned_around():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(arcs.distances(-x), arcs.distances(x).flip(1))


def test_points_between_and_beside_the_arcs_are_bad():
    assert arcs.bad(torch.tensor([[0.0, 0.0], [0.95, 0.95]])).all()
