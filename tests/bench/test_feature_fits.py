"""Fits to the features of real data, against SciPy, scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture
from torch import Tensor

from flare.bench.baselines import feature_fits


def points(n: int, seed: int, d: int = 3) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_kde_is_that_of_scipy():
    real, x = points(40, 1, 1) ** 2, points(9, 2, 1)
    found = feature_fits.fit_kde(real)(x)
    expected = -stats.gaussian_kde(real[:, 0].numpy()).logpdf(x[:, 0].numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    far = feature_fits.fit_kde(real)(torch.tensor([[1e4]], dtype=torch.float64))
    assert far.isfinite().all()  # where the density itself underflows


def test_gaussian_is_that_of_scipy_and_leaves_constants_out():
    real, x = points(30, 1) * torch.tensor([1.0, 5.0, 0.0]), points(6, 2)
    found = feature_fits.fit_gaussian(real)(x)
    mean, deviation = real.mean(0).numpy(), real.numpy().std(0, ddof=1)
    expected = -stats.norm(mean[:2], deviation[:2]).logpdf(x[:, :2].numpy()).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_mixture_of_one_is_a_gaussian_of_standardized_features():
    real, x = points(50, 1) @ points(3, 5), points(6, 2)
    found = feature_fits.fit_mixture(real, 1, 0)(x)
    z = (real - real.mean(0)) / real.std(0)
    covariance = np.cov(z.numpy().T, bias=True) + 1e-6 * np.eye(3)
    here = ((x - real.mean(0)) / real.std(0)).numpy()
    expected = -stats.multivariate_normal(np.zeros(3), covariance).logpdf(here)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_mixture_finds_two_clusters():
    real = torch.cat([points(60, 1) - 20, points(60, 2) + 20])
    x = torch.tensor([[-20.0] * 3, [0.0] * 3, [20.0] * 3], dtype=torch.float64)
    found = feature_fits.fit_mixture(real, 2, 0)(x)
    own = GaussianMixture(2, means_init=[[-1.0] * 3, [1.0] * 3])
    z = ((real - real.mean(0)) / real.std(0)).numpy()
    expected = -own.fit(z).score_samples(((x - real.mean(0)) / real.std(0)).numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert found[1] > found[0] + 50


def test_equal_features_have_distance_zero_however_far_they_are():
    real = 1e6 + points(50, 1, 40)
    assert (feature_fits.reduce_distances(real, real, lambda d, start: d.min(1)) == 0).all()


def test_a_constant_feature_does_no_harm():
    real, x = points(30, 1, 1) * 0 + 2, points(6, 2, 1)
    for fit in (feature_fits.fit_kde, feature_fits.fit_gaussian, feature_fits.fit_z_score):
        assert fit(real)(x).isfinite().all()
