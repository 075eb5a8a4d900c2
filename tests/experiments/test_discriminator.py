"""A judge tells two clouds apart as well as can be, and no better."""

from __future__ import annotations

from math import sqrt
from statistics import fmean

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.discriminator import judge


def normal(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_two_gaussians_are_told_apart_as_well_as_can_be():
    mu = 2.0
    real, generated = normal(3000), normal(3000, seed=1) + torch.tensor([0.0, mu, 0.0])
    accuracy, auc = map(fmean, zip(*(judge(real, generated, seed, 3000) for seed in range(3)), strict=True))
    # Φ(μ/2) and Φ(μ/√2); three standard errors of 1,800 test samples are 0.026
    assert accuracy == pytest.approx(stats.norm.cdf(mu / 2), abs=0.026)
    assert auc == pytest.approx(stats.norm.cdf(mu / sqrt(2)), abs=0.02)


def test_a_cloud_cannot_be_told_from_itself():
    for seed in range(4):
        accuracy, auc = judge(normal(1500), normal(1500, seed=1), seed, 1500)
        # correct answers are binomial: of 900 test samples a seed, 4.5 standard errors
        assert abs(accuracy - 0.5) < 4.5 * 0.5 / sqrt(900)
        assert abs(auc - 0.5) < 4.5 * sqrt(901 / (12 * 450 * 450))


def test_it_sees_a_wider_cloud():
    real, generated = normal(2000, 2), 3 * normal(2000, 2, seed=1)
    radius = sqrt(2 * np.log(9) / (1 - 1 / 9))  # where the two densities are equal
    best = (stats.chi(2).cdf(radius) + stats.chi(2, scale=3).sf(radius)) / 2
    found = fmean(judge(real, generated, seed, 2000)[0] for seed in range(3))
    assert found == pytest.approx(best, abs=0.03)


def test_real_samples_look_real_and_a_judgment_is_the_same_again():
    real, generated = normal(40, 12).view(40, 3, 4) + 5, normal(40, 12, seed=1).view(40, 3, 4) - 5
    assert judge(real, generated, 0, 40) == judge(real, generated, 0, 40) == (1.0, 1.0)
