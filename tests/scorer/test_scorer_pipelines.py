"""Scorers of diffusers models: pipelines, pairs, and latent models with their autoencoder."""

from __future__ import annotations

import pytest
import torch
from points import images, unet

import flare

diffusers = pytest.importorskip("diffusers")
FAST = {"pairs": 100, "subset": 50, "check": False}


@pytest.fixture(scope="module")
def pipe():
    return diffusers.DDIMPipeline(unet(), diffusers.DDIMScheduler(100))


@pytest.fixture(scope="module")
def scorer(pipe):
    return flare.fit(pipe, images(120), **FAST)


def test_every_form_of_a_model_gives_the_same_scorer(pipe, scorer, tmp_path):
    pipe.save_pretrained(tmp_path / "pipe")
    new = images(5, seed=3)
    expected = scorer.score(new)
    forms = [
        (pipe.unet, pipe.scheduler),
        flare.from_diffusers(pipe),
        tmp_path / "pipe",
        str(tmp_path / "pipe"),
    ]
    for form in forms:
        found = flare.fit(form, images(120), **FAST).score(new)
        assert torch.equal(found.p_value, expected.p_value)
    found = flare.fit(pipe.unet, images(120), pipe.scheduler, **FAST).score(new)
    assert torch.equal(found.p_value, expected.p_value)


def test_samples_are_those_of_the_scheduler(pipe, scorer):
    result = scorer.sample(3, steps=5, seed=2)
    model = flare.from_diffusers(pipe)
    plain = flare.sample(model.denoiser, model.steps(5), n=3, shape=(1, 8, 8), seed=2)
    assert torch.equal(result.samples, plain.samples)
    assert result.verdict.nearest.min() >= 0


def test_what_comes_with_a_pipeline_is_not_given_again(pipe):
    with pytest.raises(ValueError, match="schedule comes with the model; leave schedule= out"):
        flare.fit(pipe, images(120), flare.schedules.linear(100))
    with pytest.raises(ValueError, match="prediction comes with the model"):
        flare.fit(pipe, images(120), prediction="v")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (images(120) / 2 * 255, r"the sampler clips samples to \[-1, 1\]"),
        (images(120).permute(0, 2, 3, 1), "looks like channels-last data"),
        (images(120)[:, 0], r"The channel axis is missing; use images\[:, None\]"),
    ],
    ids=["range", "channels last", "no channel"],
)
def test_images_that_are_not_the_models_are_explained(pipe, data, message):
    with pytest.raises(ValueError, match=message):
        flare.fit(pipe, data, **FAST)


def test_a_saved_scorer_comes_back_with_a_pipeline(pipe, scorer, tmp_path):
    scorer.save(tmp_path / "s")
    new = images(5, seed=3)
    assert flare.load(tmp_path / "s", pipe).score(new) == scorer.score(new)
    assert flare.load(tmp_path / "s", (pipe.unet, pipe.scheduler)).score(new) == scorer.score(new)
    other = diffusers.DDIMPipeline(pipe.unet, diffusers.DDIMScheduler(100, beta_end=0.05))
    with pytest.raises(ValueError, match="fitted for another schedule"):
        flare.load(tmp_path / "s", other)


@pytest.fixture(scope="module")
def latent():
    """A DiT pipeline: class labels, and an autoencoder that halves the sides of an image."""
    torch.manual_seed(0)
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=2, out_channels=4, num_layers=1,
        sample_size=4, patch_size=2, num_embeds_ada_norm=1000,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        in_channels=1, out_channels=1, latent_channels=2, norm_num_groups=4, sample_size=8,
        block_out_channels=(4, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, scaling_factor=0.5,
    )  # fmt: skip
    return diffusers.DiTPipeline(transformer.eval(), vae.eval(), diffusers.DDIMScheduler(100))


def test_a_latent_model_takes_images_and_returns_latents_with_their_images(latent):
    labels = torch.arange(80) % 10
    scorer = flare.fit(latent, images(80), cond={"class_labels": labels}, **FAST)
    assert scorer.shape == (2, 4, 4)
    cond = {"class_labels": torch.tensor([1, 2, 3])}
    result = scorer.sample(3, steps=4, cond=cond)
    assert result.samples.shape == (3, 2, 4, 4)
    model = flare.from_diffusers(latent)
    torch.testing.assert_close(result.observed, model.decode(result.samples).detach())
    new = images(3, seed=4)
    from_images, from_latents = (scorer.score(x, cond) for x in (new, model.encode(new)))
    assert torch.equal(from_images.p_value, from_latents.p_value)
    assert from_images.samples.shape == (3, 2, 4, 4)
    with pytest.raises(ValueError, match=r"the autoencoder takes images in \[-1, 1\]"):
        scorer.score(255 * new, cond)
