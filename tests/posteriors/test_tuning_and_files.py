from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from reference import TinyNet, small_problem
from scipy import optimize, stats

import flare
import flare.core.noise_streams
from flare import posteriors, subsets
from flare.autodiff.vjp import jacobian
from flare.posteriors import curvature, tuning
from flare.storage import checkpoint


def fitted(**options):
    _, denoiser, pairs = small_problem((3,), width=5, n=60)
    subset = subsets.random(denoiser, count=20, seed=0)
    return denoiser, subset, pairs, posteriors.dense(denoiser, subset, pairs, probes=None, **options)


def test_the_evidence_is_that_of_a_linear_gaussian_model():
    """For y = Φθ + noise the Laplace evidence is the exact density of y, by SciPy."""
    torch.manual_seed(0)
    N, d, m, delta, noise = 12, 1, 4, 0.7, 0.3
    Phi = torch.randn(N, m, dtype=torch.float64)
    theta = torch.randn(m, dtype=torch.float64)
    y = Phi @ theta + noise**0.5 * torch.randn(N, dtype=torch.float64)
    mode = torch.linalg.solve(Phi.T @ Phi / noise + delta * torch.eye(m), Phi.T @ y / noise)
    residual = (y - Phi @ mode).square().mean().item()
    statistics = curvature.Statistics(N, N, d, residual)
    origin = curvature.Origin(
        subsets.Subset({"w": torch.arange(m)}, {"w": torch.Size([m])}),
        {"structure": "", "weights": ""},
        statistics,
        mode.square().sum().item(),
    )
    posterior = posteriors.Dense(origin, delta, N / noise, *torch.linalg.eigh(Phi.T @ Phi / N))
    covariance = Phi @ Phi.T / delta + noise * torch.eye(N, dtype=torch.float64)
    exact = stats.multivariate_normal(cov=covariance.numpy()).logpdf(y.numpy())
    assert posterior.log_marginal_likelihood() == pytest.approx(exact, rel=1e-8)


def test_marglik_finds_the_maximum_that_scipy_finds():
    denoiser, subset, pairs, start = fitted()
    for scale in (1.0, 50.0):
        tuned = posteriors.dense(denoiser, subset, pairs, "marglik", scale, probes=None)
        best = optimize.minimize_scalar(
            lambda u, s=scale: -start.refit(math.exp(u), s).log_marginal_likelihood(),
            bounds=(-25, 25),
            method="bounded",
            options={"xatol": 1e-6},
        )
        assert tuned.log_marginal_likelihood() == pytest.approx(-best.fun, rel=1e-7)
        assert math.log(tuned.prior_precision) == pytest.approx(best.x, abs=2e-3)


def test_calibrated_is_N_over_the_residual_variance():
    denoiser, _, pairs, posterior = fitted(scale="calibrated")
    sigma2 = curvature.residual_statistics(denoiser, pairs).residual_variance
    assert posterior.scale == pytest.approx(30 / sigma2)


def test_validation_prefers_the_prior_that_predicts_held_out_pairs():
    denoiser, subset, pairs, _ = fitted()
    held_out = flare.noising.pairs(pairs.data, pairs.schedule, n=30, seed=9, weighting="uniform")
    tuned = posteriors.dense(denoiser, subset, pairs, "validation", 50.0, validation=held_out, probes=None)

    def likelihood(delta):
        """Log-likelihood of all held-out coordinates, from the plain matrix."""
        own = tuned.refit(delta)
        sigma = own.covariance(torch.eye(20, dtype=torch.float64))
        total, count = 0.0, 0
        for batch in held_out.batches("epsilon"):
            J, _ = jacobian(denoiser, subset, batch.x, batch.t)
            variance = torch.einsum("bdm,mn,bdn->bd", J, sigma, J) + own.origin.statistics.residual_variance
            r = denoiser(batch.x, batch.t) - batch.target
            total -= 0.5 * (variance.log() + r**2 / variance).sum().item()
            count += r.numel()
        return total / count

    best = max(likelihood(10.0**k) for k in range(-8, 9))
    assert likelihood(tuned.prior_precision) > best - 0.05


def test_held_out_coordinates_are_independent_of_the_rows():
    """The random coordinate must not depend on the random row."""
    _, _, pairs = small_problem((3,), n=200, batch_size=200)
    generator = torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(pairs.seed, 0))
    rows = torch.randint(len(pairs.data), (200,), generator=generator)
    again = torch.Generator().manual_seed(
        flare.core.noise_streams.mix_seed(flare.core.noise_streams.mix_seed(pairs.seed, 2), 0)
    )
    chosen = torch.randint(3, (200,), generator=again)
    assert 0.2 < (chosen == rows % 3).float().mean() < 0.47


def test_a_prior_at_the_end_of_the_range_warns():
    with pytest.warns(RuntimeWarning, match="tuned to 1e\\+03, an end of"):
        assert tuning._maximize(lambda delta: delta, 1e-3, 1e3) == pytest.approx(1e3)
    assert tuning._maximize(lambda delta: -abs(delta - 2), 1e-3, 1e3) == pytest.approx(2, rel=1e-2)


STRUCTURES = {
    "dense": {},
    "diagonal": {},
    "low_rank": {"rank": 5},
    "kronecker": {},
    "matrix_free": {"tolerance": 1e-8},
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_saved_posterior_gives_equal_directions_to_the_last_bit(tmp_path, structure):
    _, denoiser, pairs = small_problem((3,), width=5)
    subset = subsets.named(denoiser, "second.*")
    posterior = getattr(posteriors, structure)(denoiser, subset, pairs, 0.1, 3.0, **STRUCTURES[structure])
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    given = {"denoiser": denoiser, "pairs": pairs} if structure == "matrix_free" else {}
    again = posteriors.load(path, **given)
    first, second = (p.directions(5, torch.Generator().manual_seed(2)) for p in (posterior, again))
    assert torch.equal(first, second)
    assert repr(again) == repr(posterior)
    assert again.origin.statistics == posterior.origin.statistics
    assert all(torch.equal(again.subset.indices[k], v) for k, v in subset.indices.items())
    again.check(denoiser)


def test_a_posterior_of_another_model_is_refused(tmp_path):
    _, _, pairs, posterior = fitted()
    steps = flare.samplers.ddim(pairs.schedule, 3)
    other = flare.Denoiser(TinyNet((3,), width=6).double())
    with pytest.raises(ValueError, match="another network"):
        flare.sample(other, steps, posterior, n=2, shape=(3,))
    torch.manual_seed(5)
    retrained = flare.Denoiser(TinyNet((3,), width=5).double())
    with pytest.raises(ValueError, match="other weights of TinyNet"):
        flare.sample(retrained, steps, posterior, n=2, shape=(3,))
    posterior.save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="other weights"):
        posteriors.load(tmp_path / "p.safetensors", denoiser=retrained)


def test_errors_name_the_bad_file(tmp_path):
    _, denoiser, pairs = small_problem((3,))
    subset = subsets.named(denoiser, "second.*")
    posteriors.matrix_free(denoiser, subset, pairs, 1.0).save(tmp_path / "free.safetensors")
    with pytest.raises(ValueError, match="network and training pairs again"):
        posteriors.load(tmp_path / "free.safetensors")
    other = flare.noising.pairs(pairs.data, pairs.schedule, n=pairs.n, seed=8)
    with pytest.raises(ValueError, match="other training pairs"):
        posteriors.load(tmp_path / "free.safetensors", denoiser=denoiser, pairs=other)
    checkpoint.save(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {"format": 7})
    with pytest.raises(ValueError, match="not a posterior of format 1"):
        posteriors.load(tmp_path / "other.safetensors")
    posterior = posteriors.dense(denoiser, subset, pairs)
    posterior.save(tmp_path / "dense.safetensors")
    tensors, meta = checkpoint.load(tmp_path / "dense.safetensors")
    del tensors["eigenvalues"]
    checkpoint.save(tmp_path / "half.safetensors", tensors, meta)
    with pytest.raises(ValueError, match="cannot be used as a dense posterior"):
        posteriors.load(tmp_path / "half.safetensors")
    data = (tmp_path / "dense.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="truncated"):
        posteriors.load(tmp_path / "cut.safetensors")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_posterior_of_another_schedule_is_refused(tmp_path, structure):
    _, denoiser, pairs = small_problem((3,), width=5)
    subset = subsets.named(denoiser, "second.*")
    posterior = getattr(posteriors, structure)(denoiser, subset, pairs, 0.1, 3.0, **STRUCTURES[structure])
    posterior.save(tmp_path / "p.safetensors")
    again = posteriors.load(tmp_path / "p.safetensors", denoiser, pairs)
    renamed = flare.schedules.from_alpha_bars(pairs.schedule.alpha[1:] ** 2)
    for own in (posterior, again):
        own.check(denoiser)
        own.check(denoiser, pairs.schedule)
        own.check(denoiser, renamed)  # the same function of t
        with pytest.raises(ValueError, match=r"cosine with T = 20 .*, not cosine with T = 10 "):
            own.check(denoiser, flare.schedules.cosine(10))
        with pytest.raises(
            ValueError, match=r"another schedule: cosine with T = 20 .*, not linear with T = 20 "
        ):
            own.check(denoiser, flare.schedules.linear(20))
        with pytest.raises(ValueError, match="not flow with T = 20"):
            own.check(denoiser, flare.schedules.flow(20))


def test_a_flow_is_the_same_schedule_for_every_number_of_levels():
    net, _, pairs = small_problem((3,), width=5)
    denoiser = flare.Denoiser(net, "flow")
    flow = flare.schedules.flow(50, shift=3.0)
    pairs = flare.noising.pairs(pairs.data, flow, n=20)
    posterior = posteriors.dense(denoiser, subsets.named(denoiser, "second.*"), pairs, 1.0, 1.0)
    posterior.check(denoiser, flare.schedules.flow(20))
    with pytest.raises(ValueError, match="another schedule"):
        posterior.check(denoiser, flare.schedules.flow(20, time_scale=1000))


def test_a_file_without_a_schedule_loads_and_is_not_checked(tmp_path):
    denoiser, _, _, posterior = fitted()
    posterior.save(tmp_path / "new.safetensors")
    tensors, meta = checkpoint.load(tmp_path / "new.safetensors")
    del meta["schedule"]
    checkpoint.save(tmp_path / "old.safetensors", tensors, meta)
    old = posteriors.load(tmp_path / "old.safetensors", denoiser)
    assert old.origin.schedule is None
    old.check(denoiser, flare.schedules.linear(7))
    for broken in ("cosine", {"name": "cosine"}, {**asdict(posterior.origin.schedule), "alpha": [1.0]}):
        checkpoint.save(tmp_path / "broken.safetensors", tensors, meta | {"schedule": broken})
        with pytest.raises(ValueError, match=r"schedule|complete"):
            posteriors.load(tmp_path / "broken.safetensors")
