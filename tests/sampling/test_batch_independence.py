"""The same sample has the same score in every batch, order and part, on every processor."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import flare

N = 6
SCORES = ["trace", "expected_residual"]  # the second is the default of a calibrated posterior


def shipped(name):
    model = flare.bench.load(name)
    subset = flare.subsets.random(model.denoiser, count=60, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=300, seed=0, weighting=model.weighting)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs)
    return model.denoiser, model.sampler("ddim", 12), posterior, model.shape, model.schedule


def unet():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    net = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    ).eval()  # fmt: skip
    flow = flare.from_diffusers((net, diffusers.DDIMScheduler(num_train_timesteps=50)))
    subset = flare.subsets.random(flow.denoiser, count=60, seed=0)
    pairs = flare.noising.pairs(torch.rand(16, 1, 8, 8) * 2 - 1, flow.schedule, n=16, seed=0, batch_size=8)
    posterior = flare.posteriors.diagonal(flow.denoiser, subset, pairs)
    return flow.denoiser, flow.steps(5), posterior, (1, 8, 8), flow.schedule


@pytest.fixture(scope="module", params=["grid", "sines", "chirp", "damped", "unet"])
def case(request):
    return unet() if request.param == "unet" else shipped(request.param)


@pytest.fixture(scope="module")
def whole(case):
    denoiser, steps, posterior, shape, _ = case
    return flare.sample(
        denoiser, steps, posterior, n=N, shape=shape, seed=3, directions=3, score=SCORES, batch_size=N
    )


def alike(found, expected, limit=1e-3):
    """Relative differences of the scores, the largest over the samples."""
    for name in SCORES:
        difference = (found.scores[name] / expected.scores[name] - 1).abs().max().item()
        assert difference <= limit, f"{name} differs by {difference:.1e}"


@pytest.mark.parametrize("size", [1, 4])
def test_batches_of_another_size(case, whole, size):
    denoiser, steps, posterior, shape, _ = case
    options = {"n": N, "shape": shape, "seed": 3, "directions": 3, "score": SCORES, "batch_size": size}
    alike(flare.sample(denoiser, steps, posterior, **options), whole)


def test_a_part_by_itself(case, whole):
    denoiser, steps, posterior, shape, _ = case
    part = flare.sample(
        denoiser, steps, posterior, n=2, first=3, shape=shape, seed=3, directions=3, score=SCORES
    )
    alike(part, whole.select(torch.arange(N).ge(3) & torch.arange(N).lt(5)))


def test_another_order_of_existing_samples(case, whole):
    denoiser, _, posterior, _, schedule = case
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    one, other = (
        flare.score(
            denoiser, posterior, schedule, x, score="expected_residual", directions=3, batch_size=size
        )
        for x, size in ((whole.samples, N), (whole.samples[order], 2))
    )
    torch.testing.assert_close(other, one[order], rtol=1e-3, atol=0)


def test_the_default_derivative_is_exact_to_a_thousandth(case, whole):
    """The truth: exact derivatives of a float64 copy, which no processor rounds in the first ten digits."""
    denoiser, steps, fitted, shape, _ = case
    double = denoiser.wide(torch.float64)
    origin = dataclasses.replace(fitted.origin, fingerprint=double.fingerprint())
    posterior = dataclasses.replace(fitted, origin=origin)
    options = {"n": N, "shape": shape, "seed": 3, "directions": 3, "score": SCORES}
    exact = flare.sample(double, steps, posterior, **options)
    assert exact.about["derivative"] == "exact"
    for name in SCORES:
        error = (whole.scores[name] / exact.scores[name] - 1).abs()
        assert error.median() <= 1e-3
        assert error.max() <= 1e-2
