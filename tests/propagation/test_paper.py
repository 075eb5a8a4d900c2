"""The paper's recursion as printed: both sets of coefficients, full matrices, the sampler without noise."""

from __future__ import annotations

import pytest
import torch
from reference import flat_index, naive_jacobian, small_problem

import flare
from flare import posteriors, samplers, schedules, subsets
from flare.posteriors import curvature

BETAS = torch.linspace(0.01, 0.3, 20, dtype=torch.float64)
SCHEDULE = schedules.from_betas(BETAS)
RULES = {"main": "decoupled", "appendix": "decoupled_appendix"}


def problem(prediction="epsilon", count=15):
    net, _, _ = small_problem((3,), prediction=prediction)
    denoiser = flare.Denoiser(net, prediction)
    subset = subsets.random(denoiser, count=count, seed=4)
    H = torch.randn(count, count, dtype=torch.float64)
    origin = curvature.Origin.of(denoiser, subset, curvature.Statistics(1, 1, 1, 1.0))
    return net, denoiser, posteriors.Dense(origin, 1.0, 1.0, *torch.linalg.eigh(H @ H.T))


def printed_coefficients(name):
    """a_t and b_t for t = 1..T by the formulas of the paper, from its β_t alone."""
    alpha, bar = 1 - BETAS, (1 - BETAS).cumprod(0)
    if name == "main":
        return alpha**-0.5, BETAS / (alpha.sqrt() * (1 - bar).sqrt())
    return (1 - BETAS / (1 - bar).sqrt()) / alpha.sqrt(), (BETAS / alpha).sqrt()


def noise_jacobian(net, prediction, x, t):
    """∂ε/∂θ (B, d, p) with ε = (x − √ᾱ·x̂0)/√(1−ᾱ), for whatever the network predicts."""
    bar = (1 - BETAS).cumprod(0)[t - 1]
    by_output = {"epsilon": 1.0, "sample": -(bar**0.5) / (1 - bar) ** 0.5, "v": bar**0.5}[prediction]
    return by_output * naive_jacobian(net, x, torch.full((len(x),), t - 1))


@pytest.mark.parametrize(
    ("name", "prediction"),
    # of other predictions, the main text's coefficients are those of x' = a·x + b·f
    [("main", "epsilon"), ("appendix", "epsilon"), ("appendix", "v"), ("appendix", "sample")],
)
def test_the_recursion_is_the_printed_one_with_full_matrices(name, prediction):
    net, denoiser, posterior = problem(prediction)
    steps = samplers.ddpm(SCHEDULE)
    start = torch.randn(4, 3, dtype=torch.float64)
    options = {"start": start, "rule": RULES[name], "directions": "exact"}
    run = flare.trajectories(denoiser, steps, posterior, covariance=True, **options)
    states = [start, *(frame.x for frame in run)]
    sigma = posterior.covariance(torch.eye(posterior.size, dtype=torch.float64))
    index = flat_index(posterior.subset, net)
    a, b = printed_coefficients(name)
    V = torch.zeros(4, 3, 3, dtype=torch.float64)
    for x, t in zip(states, range(len(BETAS), 0, -1), strict=False):
        J = noise_jacobian(net, prediction, x, t)[..., index]
        V = a[t - 1] ** 2 * V + b[t - 1] ** 2 * J @ sigma @ J.transpose(1, 2)
    result = run.result
    torch.testing.assert_close(result.covariance, V, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(result.variance, V.diagonal(dim1=1, dim2=2), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(result.score, V.diagonal(dim1=1, dim2=2).sum(1), rtol=1e-8, atol=1e-12)
    assert result.about["rule"] == RULES[name]


def test_a_covariance_of_images_is_over_all_coordinates_and_nan_where_a_sample_is_lost():
    shape = (1, 2, 2)
    _, denoiser, pairs = small_problem(shape)
    steps = samplers.ddpm(pairs.schedule)
    posterior = posteriors.dense(denoiser, subsets.last_layer(denoiser), pairs, 1.0, 1.0)
    options = {"rule": "released", "covariance": True, "directions": 3}
    start = torch.randn(3, *shape, dtype=torch.float64)
    result = flare.sample(denoiser, steps, posterior, start=start, **options)
    assert result.covariance.shape == (3, 4, 4)
    torch.testing.assert_close(
        result.covariance.diagonal(dim1=1, dim2=2), result.variance.flatten(1), rtol=1e-6, atol=1e-12
    )
    start[1] = 1e308
    start[1, 0, 0] = -1e308
    with pytest.warns(RuntimeWarning, match="1 of 3 samples"):
        lost = flare.sample(denoiser, steps, posterior, start=start, **options)
    assert lost.covariance[1].isnan().all()
    assert lost.covariance[[0, 2]].isfinite().all()


def test_the_sampler_of_algorithm_1_is_ddpm_without_its_noise():
    _, denoiser, _ = problem()
    x = torch.randn(4, 3, dtype=torch.float64)
    result = flare.sample(denoiser, samplers.ddpm_mean(SCHEDULE), start=x, seed=3)
    bar = (1 - BETAS).cumprod(0)
    for t in range(len(BETAS), 0, -1):
        eps = denoiser(x, torch.full((4,), t - 1))
        beta = BETAS[t - 1]
        x = (x - beta / (1 - bar[t - 1]).sqrt() * eps) / (1 - beta).sqrt()
    torch.testing.assert_close(result.samples, x, rtol=1e-9, atol=1e-9)
    assert all(row.c == 0 for row in samplers.ddpm(SCHEDULE, variance="none").rows("epsilon"))


def test_the_coefficients_of_ddpm_need_its_schedule():
    _, denoiser, posterior = problem("sample")
    steps = samplers.euler(schedules.flow(10))
    with pytest.raises(ValueError, match=r"needs a variance-preserving schedule.*use rule='decoupled'"):
        flare.sample(denoiser, steps, posterior, n=2, shape=(3,), rule="decoupled_appendix")
