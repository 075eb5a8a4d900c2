"""Images as a model takes them: their range, their type and the order of their channels."""

from __future__ import annotations

import pytest
import tiny
import torch
from diffusers import (
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    FlowMatchEulerDiscreteScheduler,
)

import flare

T = 30


@pytest.fixture(scope="module")
def latent():
    return flare.from_diffusers(DiTPipeline(tiny.dit(), tiny.vae(), DDIMScheduler(T, clip_sample=False)))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.linspace(0, 255, 256).view(4, 1, 8, 8),
            r"clips samples to \[-1, 1\], but this data of shape \(4, 1, 8, 8\) lies in \[.*float\(\)",
        ),
        (
            torch.ones(4, 1, 8, 8, dtype=torch.uint8),
            r"must be floating point, got torch.uint8; .* / 127\.5 - 1",
        ),
        (torch.zeros(4, 3, 8, 8), r"samples of shape \(1, H, W\), got samples of shape \(3, 8, 8\)\.$"),
        (
            torch.zeros(4, 8, 8, 1),
            r"of shape \(8, 8, 1\).*looks like channels-last data; use images\.permute\(0, 3, 1, 2\)",
        ),
        (
            torch.zeros(4, 8, 8),
            r"of shape \(8, 8\).*channel axis is missing; use images\[:, None\]",
        ),
    ],
)
def test_images_that_the_model_was_not_trained_on_are_refused(images, message):
    model = flare.from_diffusers(DDPMPipeline(tiny.unet2d(), DDPMScheduler(T)))
    for given in (images, images.numpy()):
        with pytest.raises((ValueError, TypeError), match=message):
            model.pairs(given)


def test_series_with_their_channels_last_are_refused():
    model = flare.from_diffusers((tiny.unet1d(), DDPMScheduler(T)))
    with pytest.raises(ValueError, match=r"\(2, L\), got samples of shape .* use images\.permute\(0, 2, 1\)"):
        model.pairs(torch.zeros(4, 16, 2))


def test_pairs_and_latents_are_made_of_numpy_arrays_too(latent):
    model, images = latent, torch.rand(2, 1, 8, 8) * 2 - 1
    latents = model.encode(images)
    assert torch.equal(model.encode(images.numpy()), latents)
    labels = torch.tensor([1, 2])
    assert torch.equal(model.pairs(latents.numpy(), cond={"class_labels": labels}).data, latents)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            r"must be floating point, got torch.uint8; .* / 127\.5 - 1",
        ),
        (
            torch.linspace(0, 254, 128).view(2, 1, 8, 8),
            r"takes images in \[-1, 1\].* lies in \[0, 254\]; scale .*images\.float\(\) / 127\.5 - 1",
        ),
        (torch.zeros(2, 8, 8, 1), r"AutoencoderKL takes .*of shape \(8, 8, 1\).*permute\(0, 3, 1, 2\)"),
        (torch.zeros(2, 8, 8), "channel axis is missing"),
    ],
)
def test_images_that_the_autoencoder_does_not_take_are_refused(latent, images, message):
    with pytest.raises((ValueError, TypeError), match=message):
        latent.encode(images)


def test_a_little_beyond_the_range_is_rounding(latent):
    latent.encode(torch.full((1, 1, 8, 8), 1.004))


def test_samples_are_compared_with_the_range_of_the_sampler_unless_they_are_latents(latent):
    wide = torch.linspace(-3, 3, 128)
    clipped = flare.from_diffusers(DDPMPipeline(tiny.unet2d(), DDPMScheduler(T, clip_sample_range=2.0)))
    clipped.check_samples(wide.view(2, 1, 8, 8) / 1.5)
    with pytest.raises(ValueError, match=r"clips samples to \[-2, 2\].* lies in \[-3, 3\]"):
        clipped.check_samples(wide.view(2, 1, 8, 8))
    flare.from_diffusers((tiny.unet2d(), DDPMScheduler(T, clip_sample=False))).check_samples(wide)
    pipe = DiTPipeline(tiny.dit(), tiny.vae(), DDIMScheduler(T))  # clips latents
    model = flare.from_diffusers(pipe)
    assert model.clip == 1.0
    model.check_samples(wide.view(4, 2, 4, 4))


def test_a_model_without_a_sample_size_asks_for_the_shape():
    model = flare.from_diffusers((tiny.flux(), FlowMatchEulerDiscreteScheduler(T)))
    with pytest.raises(
        ValueError, match=r"FluxTransformer2DModel does not say .* such as shape=\(3, 32, 32\)"
    ):
        _ = model.shape
