"""Realism and density, by hand and against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flare.bench import baselines


def points(n: int, seed: int, d: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_realism_and_density_by_hand():
    # radii to the 1st neighbor: 1, 1, 3, 3; the median of them is 1, so realism keeps the first two
    real = torch.tensor([[0.0], [1.0], [4.0], [7.0]])
    x = torch.tensor([[0.5], [2.0], [5.5], [20.0], [1.0]])
    realism = baselines.Realism(neighbors=1).fit(real).score(x)
    torch.testing.assert_close(realism, torch.tensor([0.5, 1.0, 4.5, 19.0, 0.0]))
    # 0.5 is in the balls of 0 and 1; 2 in those of 1 and 4; 5.5 in those of 4 and 7; 1 in those of 0, 1 and 4
    density = baselines.Density(neighbors=1).fit(real).score(x)
    torch.testing.assert_close(density, torch.tensor([-2.0, -2.0, -2.0, 0.0, -3.0]))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(seed=st.integers(0, 99), k=st.integers(1, 4))
def test_realism_and_density_are_those_of_loops(seed, k):
    real, x = points(9, seed, 2), points(5, seed + 100, 2)
    radii = [sorted(math.dist(a, b) for b in real.tolist())[k] for a in real.tolist()]
    median = sorted(radii)[4]
    for one, found, count in zip(
        x.tolist(),
        baselines.Realism(neighbors=k).fit(real).score(x).tolist(),
        baselines.Density(neighbors=k).fit(real).score(x).tolist(),
        strict=True,
    ):
        far = [(math.dist(one, r), radius) for r, radius in zip(real.tolist(), radii, strict=True)]
        assert found == pytest.approx(min(d / radius for d, radius in far if radius <= median))
        assert count == pytest.approx(-sum(d <= radius for d, radius in far) / k)


def test_copies_among_real_data_count_once_in_realism():
    real = torch.tensor([[0.0], [0.0], [0.0], [5.0], [9.0], [12.0]])
    # radii of 0, 5, 9, 12: 9, 5, 4, 7; those of 5 and 9 are kept
    found = baselines.Realism(neighbors=2).fit(real).score(torch.tensor([[0.0], [5.0], [11.0]]))
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 0.5]))
    # with the copies, the radii are 0, 0, 0, 5, 4, 7: the balls of the copies and of 5 contain 0
    assert baselines.Density(neighbors=2).fit(real).score(torch.tensor([[0.0]])).item() == pytest.approx(
        -4 / 2
    )
    with pytest.raises(ValueError, match="realism needs at least 3 different real samples, got 2"):
        baselines.Realism(neighbors=2).fit(real[:4])
