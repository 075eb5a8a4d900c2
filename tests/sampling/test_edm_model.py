"""A preconditioned network with a closed form, through the whole library: Gaussian data on an EDM schedule.

For data N(μ, s²) the best denoiser is D(x, σ) = (s²·x + σ²·μ)/(s² + σ²). The ODE has the solution
x(σ) = μ + (x_T − μ)·√((s²+σ²)/(s²+σ_max²)), and every score has a closed form, too.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import flare
from flare import samplers, schedules
from flare.core.noise_streams import SHARED_STREAM, mix_seed

F64 = torch.float64
MEAN, SPREAD = torch.tensor([0.4, -0.9, 0.1], dtype=F64), torch.tensor([0.3, 0.6, 0.15], dtype=F64)
SCHEDULE = schedules.edm()
TOP = 80.0


class Gaussian(nn.Module):
    """F(c_in·x, log(σ)/4) with c_skip·x + c_out·F = D; its parameters are μ and s."""

    def __init__(self, data=0.5):
        super().__init__()
        self.mean, self.spread = nn.Parameter(MEAN.clone()), nn.Parameter(SPREAD.clone())
        self.data = data

    def forward(self, scaled, c_noise):
        sigma2 = (8 * c_noise).exp().unsqueeze(1)
        total = sigma2 + self.data**2
        x = scaled * total.sqrt()
        s2 = self.spread**2
        clean = (s2 * x + sigma2 * self.mean) / (s2 + sigma2)
        return (clean - self.data**2 / total * x) * total.sqrt() / (sigma2.sqrt() * self.data)


def real(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return MEAN + SPREAD * torch.randn(n, 3, generator=generator, dtype=F64)


def denoiser(data=0.5):
    return flare.Denoiser(Gaussian(data), f"edm:{data}")


def solution(x_T):
    return MEAN + (x_T - MEAN) * SPREAD / (SPREAD**2 + TOP**2).sqrt()


def fitted(own):
    pairs = flare.noising.pairs(real(400), SCHEDULE, n=2000, seed=0)
    return flare.posteriors.dense(own, flare.subsets.everything(own), pairs, 1e-2, 1.0)


@pytest.mark.parametrize("data", [0.5, 1.3])
def test_samples_follow_the_closed_form_to_second_order(data):
    x_T = TOP * torch.randn(64, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    errors = {}
    for make in (samplers.euler, samplers.heun):
        for n in (40, 80, 160):
            ends = flare.sample(denoiser(data), make(SCHEDULE, n), start=x_T).samples
            errors[make.__name__, n] = (ends - solution(x_T)).abs().max().item()
    assert errors["heun", 40] < 0.02
    for n in (40, 80):
        assert 3.3 < errors["heun", n] / errors["heun", 2 * n] < 5
        assert 1.7 < errors["euler", n] / errors["euler", 2 * n] < 2.5


@pytest.mark.parametrize("churn", [None, samplers.Churn(20, 0.01, 50.0, 1.0)])
def test_samples_have_the_mean_and_the_variance_of_the_data(churn):
    n = 20_000
    steps = samplers.heun(SCHEDULE, 80, churn=churn)
    x = flare.sample(denoiser(), steps, n=n, shape=(3,), seed=0).samples
    # x_T = σ_max·z has no mean: μ·s/σ_max is missing
    assert ((x.mean(0) - MEAN).abs() <= 5 * SPREAD / n**0.5 + MEAN.abs() * SPREAD / TOP).all()
    torch.testing.assert_close(x.std(0), SPREAD, rtol=0.03, atol=0.0)


def test_the_tangent_through_heun_is_the_derivative_of_the_closed_form():
    """∂x_0/∂μ = 1 − s/√(s²+σ²), ∂x_0/∂s = (x_T − μ)·σ²/(s²+σ²)^(3/2), up to the error of the steps."""
    own = denoiser()
    posterior = fitted(own)
    x_T = TOP * torch.randn(8, 3, dtype=F64, generator=torch.Generator().manual_seed(2))
    result = flare.sample(
        own, samplers.heun(SCHEDULE, 160), posterior, start=x_T, directions="exact", covariance=True
    )
    total = SPREAD**2 + TOP**2
    by_mean = (1 - SPREAD / total.sqrt()).expand(8, 3)
    by_spread = (x_T - MEAN) * TOP**2 / total**1.5
    J = torch.cat([torch.diag_embed(by_mean), torch.diag_embed(by_spread)], dim=2)
    sigma = posterior.covariance(torch.eye(6, dtype=F64))
    torch.testing.assert_close(result.covariance, J @ sigma @ J.mT, rtol=2e-3, atol=1e-4 * sigma.max().item())


def naive_losses(net, x, noises):
    """½‖f − target‖² of one sample for each level σ and noise, one at a time; and √(min-SNR weight)."""
    for s, eps in noises:
        total = s**2 + 0.25
        state, c_skip, c_out = x + s * eps, 0.25 / total, 0.5 * s / total**0.5
        f = net(state[None] / total**0.5, torch.tensor([math.log(s) / 4], dtype=F64))
        yield (f - (x - c_skip * state) / c_out).square().sum() / 2, min(1 / s, 5**0.5) * c_out


def test_influence_and_error_profile_are_their_formulas():
    own, x, data = denoiser(), real(5, seed=3), real(8, seed=4)
    posterior = fitted(own)
    sigma = posterior.covariance(torch.eye(6, dtype=F64))
    options = {"levels": (0.05, 0.4, 0.8), "repeats": 2, "seed": 0}
    sigmas = [SCHEDULE.at_fraction(u).sigma for u in options["levels"]]
    net, shared = Gaussian(), mix_seed(0, SHARED_STREAM)
    # the rest of the draw are probes of another score
    noise = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(mix_seed(shared, 0)))[0].double()
    both_signs = [(s, sign * eps) for s, eps in zip(sigmas, noise, strict=True) for sign in (1, -1)]

    def gradient(one):
        found = torch.zeros(6, dtype=F64)
        for loss, weight in naive_losses(net, one, both_signs):
            found += weight * torch.cat(torch.autograd.grad(loss, [net.mean, net.spread])) / 6
        return found

    known = [gradient(one) for one in data]
    influence = flare.score(own, posterior, SCHEDULE, x, score="influence", data=data, **options)
    for i, one in enumerate(x):
        changes = [gradient(one) - other for other in known]
        distances = sorted((change @ sigma @ change).item() ** 0.5 for change in changes)
        assert influence[i].item() == pytest.approx(sum(distances[:5]) / 5, rel=1e-4)
    noise = torch.randn(6, 3, generator=torch.Generator().manual_seed(shared)).double()
    fresh = list(zip([s for s in sigmas for _ in range(2)], noise, strict=True))
    profile = flare.score(own, posterior, SCHEDULE, x, score="error_profile", **options)
    for i, one in enumerate(x):
        errors = torch.stack([2 * loss.detach() for loss, _ in naive_losses(net, one, fresh)])
        assert profile[i].item() == pytest.approx(errors.view(3, 2).mean(1).log().mean().item(), rel=1e-6)


def test_far_samples_have_more_influence_than_real_ones():
    own = denoiser()
    posterior = fitted(own)
    near, far = real(50, seed=4), real(50, seed=5) + 6 * SPREAD
    for name, data in (("influence", real(50, seed=6)), ("error_profile", None)):
        scores = [flare.score(own, posterior, SCHEDULE, x, score=name, data=data) for x in (near, far)]
        assert scores[0].median() < scores[1].median(), name


def test_the_curvature_is_that_of_a_plain_loop():
    own = denoiser()
    pairs = flare.noising.pairs(real(50), SCHEDULE, n=60, seed=0, weighting="min_snr", batch_size=20)
    net = Gaussian()
    H = torch.zeros(6, 6, dtype=F64)
    for batch in pairs.batches("edm", F64):
        for x, sigma, weight in zip(batch.x, batch.t, batch.weight, strict=True):
            f = net(x[None] / (sigma**2 + 0.25).sqrt(), sigma.log()[None] / 4)[0]
            J = torch.stack(
                [torch.cat(torch.autograd.grad(v, [net.mean, net.spread], retain_graph=True)) for v in f]
            )
            H += weight * J.T @ J / 60
    posterior = flare.posteriors.dense(own, flare.subsets.everything(own), pairs, 0.3, 2.0, probes=None)
    expected = torch.linalg.inv(2 * H + 0.3 * torch.eye(6, dtype=F64))
    torch.testing.assert_close(posterior.covariance(torch.eye(6, dtype=F64)), expected)


def test_a_model_that_fits_is_left_in_peace_and_others_are_told_why():
    data = real(3000)
    check = flare.check_model(denoiser(), data, SCHEDULE)
    assert check.verdict == "The model fits the data."
    assert abs(check.excess) < 0.05
    for e in check.levels:  # the best linear denoiser of Gaussian data is the network itself
        assert e.error == pytest.approx(e.linear, rel=0.35)
    # of data with σ_data in every direction, F = 0 is the best denoiser: it knows nothing but the scale
    blank = Gaussian()
    with torch.no_grad():
        blank.mean.zero_()
        blank.spread.fill_(0.5)
    own, round_data = flare.Denoiser(blank, "edm"), 0.5 * (data - MEAN) / SPREAD
    assert flare.check_model(own, round_data, SCHEDULE).verdict == "The model fits the data."
    assert "does not fit" in flare.check_model(denoiser(), 5 + 3 * data, SCHEDULE).verdict

    class Logs(nn.Module):
        """D(x, log(σ)/4)."""

        def __init__(self):
            super().__init__()
            self.spread = nn.Parameter(SPREAD.clone())

        def forward(self, x, t):
            sigma2 = (8 * t).exp().unsqueeze(1)
            return (self.spread**2 * x + sigma2 * MEAN) / (self.spread**2 + sigma2)

    own = flare.Denoiser(Logs(), "sample")
    assert "set the schedule's time to log_sigma" in flare.check_model(own, data, SCHEDULE).verdict
    assert flare.check_model(own, data, schedules.edm(time="log_sigma")).verdict == "The model fits the data."


def test_training_with_the_schedule_and_the_prediction_is_that_of_edm():
    """The plain loss of F is EDM's loss; a wrong start is trained to the closed form."""
    net = Gaussian()
    with torch.no_grad():
        net.mean.zero_()
        net.spread.fill_(0.5)
    config = flare.training.TrainConfig(
        300, batch_size=256, learning_rate=2e-2, warmup=5, ema=0.9, weighting="uniform", weight_decay=0.0
    )
    run = flare.training.Training(net, real(4000), SCHEDULE, config, "edm")
    for _ in range(300):
        run.step()
    weights = run.weights()
    torch.testing.assert_close(weights["mean"], MEAN, rtol=0.0, atol=0.05)
    torch.testing.assert_close(weights["spread"].abs(), SPREAD, rtol=0.1, atol=0.0)


def test_a_posterior_is_saved_and_refuses_another_sigma_data(tmp_path):
    own = denoiser()
    posterior = fitted(own)
    posterior.save(tmp_path / "p.safetensors")
    again = flare.posteriors.load(tmp_path / "p.safetensors", own)
    steps = samplers.heun(SCHEDULE, 6)
    options = {"n": 4, "shape": (3,), "directions": "exact"}
    torch.testing.assert_close(
        flare.sample(own, steps, again, **options).variance,
        flare.sample(own, steps, posterior, **options).variance,
    )
    with pytest.raises(ValueError, match="other"):
        flare.sample(flare.Denoiser(Gaussian(), "edm:1.0"), steps, again, **options)
    with pytest.raises(ValueError, match="edm"):
        flare.sample(own, samplers.heun(schedules.edm(sigma_max=20.0), 6), again, **options)


def test_baselines_take_an_edm_model():
    own, x = denoiser(), real(20, seed=6)
    baselines = flare.bench.baselines
    assert baselines.DDPMOOD(own, SCHEDULE, calls=3).fit(x).score(x[:4]).isfinite().all()
    steps = samplers.heun(SCHEDULE, 5)
    assert baselines.last_iterates(own, steps, 4, (3,)).score.isfinite().all()
    with pytest.raises(ValueError, match="one-step sampler; heun keeps 2 terms"):
        baselines.aleatoric(own, steps, 2, (3,))
    with pytest.raises(ValueError, match="BayesDiff needs a one-step sampler"):
        baselines.bayesdiff(own, steps, fitted(own), 2, (3,))
    assert baselines.bayesdiff(own, samplers.euler(SCHEDULE, 5), fitted(own), 2, (3,)).score.isfinite().all()
