"""PixArt, Flux, image to image and inpainting: the images of the pipeline, with scores."""

from __future__ import annotations

import pytest
import tiny
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    HeunDiscreteScheduler,
)

import flare
from flare.autodiff.jvp import Push
from flare.integrations.diffusers_networks import pack, unpack
from flare.integrations.pipeline import PIPELINES

pytest.importorskip("transformers")
T = 20
SCHEDULERS = {
    "ddim": lambda: DDIMScheduler(T, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    "ddpm": lambda: DDPMScheduler(T, clip_sample=False),
    "dpm": lambda: DPMSolverMultistepScheduler(T),
    "karras": lambda: DPMSolverMultistepScheduler(T, use_karras_sigmas=True),  # times that repeat
    "euler": lambda: EulerDiscreteScheduler(T),
    "heun": lambda: HeunDiscreteScheduler(T),
    "flow": lambda: FlowMatchEulerDiscreteScheduler(T, shift=3.0),
    "shifting": lambda: FlowMatchEulerDiscreteScheduler(T, use_dynamic_shifting=True, max_image_seq_len=40),
}


def seeded():
    return torch.Generator().manual_seed(3)


def fitted(pipe, plain=None, **options):
    """A posterior of the network, with the conditions of the pipeline from text to image."""
    pipe.set_progress_bar_config(disable=True)
    plain = pipe if plain is None else plain
    model = flare.from_diffusers(pipe)
    cond = flare.prompt_conditions(plain, ["a cat", "dog", "red"], batch_size=2, **options)
    shape = (model.denoiser.channels, 8, 8)
    if extra := model.denoiser._concatenated:
        cond["concat"] = torch.rand(3, extra, 8, 8)
    pairs = model.pairs(torch.randn(3, *shape), n=20, cond=cond)
    subset = flare.subsets.random(model.denoiser, count=30, seed=0)
    return flare.posteriors.dense(model.denoiser, subset, pairs, 1.0)


def compare(pipe, posterior, tolerance=2e-4, **options):
    """Compare the images, and return the scored output."""
    scored = flare.FlarePipeline(pipe, posterior, directions=2)
    call = {"num_inference_steps": 5, "output_type": "pt", **options}
    theirs = pipe(["a cat", "dog"], generator=seeded(), **call)
    ours = scored(["a cat", "dog"], generator=seeded(), **call)
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours.images, theirs.images, atol=tolerance, rtol=0.0)
    assert torch.isfinite(ours.scores).all()
    assert len(ours.scores) == len(theirs.images)
    if call["output_type"] == "pt":
        assert ours.uncertainty_maps.shape == theirs.images.shape
        assert (ours.uncertainty_maps > 0).any(dim=(1, 2, 3)).all()
    return ours


SMALL = {"use_resolution_binning": False, "max_sequence_length": 8, "clean_caption": False}


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("pixart", "dpm", {}),
        ("pixart", "ddim", {"guidance_scale": 1.0, "num_images_per_prompt": 2}),
        ("pixart_alpha", "euler", {"negative_prompt": "bad", "height": 16, "width": 24}),
        ("pixart_alpha", "ddpm", {"guidance_scale": 3.0}),
    ],
)
def test_pixart(name, scheduler, options):
    # with 128, PixArt-α also takes the resolution and the aspect ratio, in added_cond_kwargs
    sizes = {"sample_size": 128, "use_additional_conditions": True} if name == "pixart_alpha" else {}
    pipe = tiny.MORE[name](SCHEDULERS[scheduler](), **sizes)
    small = SMALL | {"height": 16, "width": 16}
    posterior = fitted(pipe, **small)
    ours = compare(pipe, posterior, **small | options)
    assert ours.images.shape[2:] == (16, options.get("width", 16))


def test_pixart_resizes_images_and_their_maps():
    pipe = tiny.MORE["pixart"](SCHEDULERS["dpm"](), depth=4, sample_size=32)
    size = {"height": 40, "width": 56, "max_sequence_length": 8, "clean_caption": False}
    posterior = fitted(pipe, **size, use_resolution_binning=False)
    ours = compare(pipe, posterior, num_inference_steps=2, guidance_scale=1.0, **size)
    assert ours.uncertainty_maps.shape == (2, 3, 40, 56)


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("stable", "ddim", {"strength": 0.6}),
        ("stable", "ddim", {"strength": 1.0, "eta": 0.5, "num_images_per_prompt": 2}),
        ("stable", "ddpm", {"strength": 0.6, "guidance_scale": 1.0}),
        ("stable", "dpm", {"strength": 0.5, "num_inference_steps": 8}),
        ("stable", "karras", {"strength": 0.5, "num_inference_steps": 18}),
        ("stable", "euler", {"strength": 0.4}),
        ("stable", "heun", {"strength": 0.6}),
        ("stable_xl", "euler", {"strength": 0.6}),
        ("stable_3", "flow", {"strength": 0.6}),
        ("stable_3", "shifting", {"strength": 0.6, "height": 16, "width": 16}),
    ],
)
def test_image_to_image(name, scheduler, options):
    pipe, plain = tiny.from_image(name, SCHEDULERS[scheduler]())
    images = torch.rand(2, 3, 16, 16, generator=seeded())
    compare(pipe, fitted(pipe, plain), image=images, **options)


def test_image_to_image_of_flux():
    pipe, plain = tiny.from_image("flux", SCHEDULERS["shifting"]())
    small = {"height": 16, "width": 16, "max_sequence_length": 8}
    images = torch.rand(2, 3, 16, 16, generator=seeded())
    compare(pipe, fitted(pipe, plain, **small), image=images, strength=0.6, **small)


def test_an_image_that_is_not_changed_is_refused():
    pipe, plain = tiny.from_image("stable", SCHEDULERS["ddim"]())
    scored = flare.FlarePipeline(pipe, fitted(pipe, plain))
    image = torch.rand(1, 3, 16, 16)
    with pytest.raises(ValueError, match=r"strength=0\.1 leaves none of 5 steps; give more strength"):
        scored("a cat", image=image, strength=0.1, num_inference_steps=5)
    with pytest.raises(ValueError, match=r"AutoPipelineForText2Image\.from_pipe"):
        flare.prompt_conditions(pipe, ["a cat"])


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("stable", "ddim", {}),
        ("stable", "euler", {"strength": 0.7, "guidance_scale": 1.0}),
        ("stable_xl", "dpm", {"strength": 0.8}),
    ],
)
def test_inpainting(name, scheduler, options):
    pipe, plain = tiny.inpainting(name, SCHEDULERS[scheduler]())
    images, masks = torch.rand(2, 3, 16, 16, generator=seeded()), torch.zeros(2, 1, 16, 16)
    masks[:, :, 4:12, 4:12] = 1
    given = {"image": images, "mask_image": masks, "height": 16, "width": 16}
    ours = compare(pipe, fitted(pipe, plain), **given, **options)
    scored = flare.FlarePipeline(pipe, fitted(pipe, plain), directions=2)
    other = scored(["a cat", "dog"], generator=seeded(), num_inference_steps=5, output_type="pt",
                   **{**given, "mask_image": 1 - masks}, **options)  # fmt: skip
    assert not torch.allclose(ours.images, other.images)  # the mask matters


def test_inpainting_without_mask_channels_is_refused():
    pipe, plain = tiny.inpainting("stable", SCHEDULERS["ddim"](), channels=4)
    posterior = fitted(plain)
    with pytest.raises(ValueError, match=r"a UNet of 4 input channels is not supported: it blends .*=9\)"):
        flare.FlarePipeline(pipe, posterior)
    pipe, plain = tiny.inpainting("stable", SCHEDULERS["ddim"]())
    scored = flare.FlarePipeline(pipe, fitted(pipe, plain))
    with pytest.raises(ValueError, match="padding_mask_crop is not supported"):
        scored("a cat", image=torch.rand(1, 3, 16, 16), padding_mask_crop=4)


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("shifting", {}),
        ("shifting", {"width": 32, "guidance_scale": 1.5, "num_images_per_prompt": 2}),
        ("flow", {"output_type": "latent"}),
    ],
)
def test_flux(scheduler, options):
    pipe = tiny.MORE["flux"](SCHEDULERS[scheduler]())
    small = {"height": 16, "width": 16, "max_sequence_length": 8}
    compare(pipe, fitted(pipe, **small), **small | options)


def test_a_stochastic_flow_draws_noise_for_tokens_as_the_pipeline_does():
    pipe = tiny.MORE["flux"](FlowMatchEulerDiscreteScheduler(T, stochastic_sampling=True))
    small = {"height": 16, "width": 24, "max_sequence_length": 8}
    scored = flare.FlarePipeline(pipe, fitted(pipe, **small), directions=2)
    images = []
    for p in (scored, pipe):
        torch.manual_seed(4)
        call = {"generator": seeded(), "num_inference_steps": 4, "output_type": "pt"}
        images.append(p("a cat", **call, **small).images)
    torch.testing.assert_close(*images, atol=2e-4, rtol=0.0)


def test_flux_without_guidance_and_its_limits():
    pipe = tiny.MORE["flux"](SCHEDULERS["shifting"](), guidance_embeds=False)
    small = {"height": 16, "width": 16, "max_sequence_length": 8}
    posterior = fitted(pipe, **small)
    compare(pipe, posterior, **small)
    scored = flare.FlarePipeline(pipe, posterior)
    with pytest.raises(ValueError, match="true_cfg_scale is not supported"):
        scored("a cat", negative_prompt="bad", true_cfg_scale=2.0)
    embedding = tiny.flux()
    denoiser = flare.from_diffusers((embedding, SCHEDULERS["flow"]())).denoiser
    cond = {
        "encoder_hidden_states": torch.randn(2, 3, tiny.TEXT),
        "pooled_projections": torch.randn(2, tiny.TEXT),
    }
    t = torch.tensor([3.0, 4.0])
    with pytest.raises(ValueError, match=r"FluxTransformer2DModel needs a condition: give cond=\{'guidance'"):
        denoiser(torch.randn(2, 2, 4, 4), t, cond)
    with pytest.raises(ValueError, match="takes latents of even height and width, got 3 × 4"):
        denoiser(torch.randn(2, 2, 3, 4), t, cond | {"guidance": torch.ones(2)})


def test_a_dynamic_shift_is_that_of_the_pipeline():
    pipe = tiny.stable_3(SCHEDULERS["shifting"]())
    posterior = fitted(pipe)
    whole = compare(pipe, posterior, height=8, width=8)
    assert whole.images.shape[2:] == (8, 8)
    compare(pipe, posterior, height=16, width=24)  # another shift


def test_secants_survive_casts_to_float32():
    # RMS norms and rotary embeddings compute in float32: a float64 copy would lose its digits there
    net = tiny.sd3(qk_norm="rms_norm")
    model = flare.from_diffusers((net, SCHEDULERS["flow"]()))
    x, t, cond = torch.randn(2, 2, 4, 4), torch.tensor([3.0, 11.0]), tiny.cond("sd3", 2)
    subset, D = (
        flare.subsets.everything(model.denoiser),
        0.05 * torch.randn(model.denoiser.parameter_count, 1),
    )
    _, exact = Push(model.denoiser.by("exact"), subset, D)(x, None, t, cond)
    _, secant = Push(model.denoiser.by("secant"), subset, D)(x, None, t, cond)
    assert ((secant - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize("kind", ["pixart", "flux"])
def test_the_transformers_answer_and_are_differentiated(kind):
    net, n = getattr(tiny, kind)(), 3
    model = flare.from_diffusers((net, SCHEDULERS["flow" if kind == "flux" else "ddim"]()))
    x, t, text = torch.randn(n, 2, 8, 8), torch.tensor([3.0, 11.0, 15.0]), torch.randn(n, 5, tiny.TEXT)
    cond = {"encoder_hidden_states": text}
    if kind == "flux":
        cond |= {"pooled_projections": torch.randn(n, tiny.TEXT), "guidance": torch.full((n,), 3.5)}
        given = {
            "hidden_states": FluxPipeline._pack_latents(x, n, 2, 8, 8), "timestep": t / 1000,
            "img_ids": FluxPipeline._prepare_latent_image_ids(n, 4, 4, "cpu", torch.float32),
            "txt_ids": torch.zeros(5, 3),
        }  # fmt: skip
    else:
        cond["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]])
        nested = {"resolution": None, "aspect_ratio": None}
        given = {"hidden_states": x, "timestep": t, "added_cond_kwargs": nested}
        cond["added_cond_kwargs"] = nested
    with torch.no_grad():
        expected = net(**cond | given).sample
    if kind == "flux":
        expected = FluxPipeline._unpack_latents(expected, 16, 16, 2)
    torch.testing.assert_close(model.denoiser(x, t, cond), expected[:, :2])
    subset = flare.subsets.random(model.denoiser, count=40, seed=0)
    D, dx = 0.05 * torch.randn(40, 2), 0.1 * torch.randn(2, n, 2, 8, 8)
    _, exact = Push(model.denoiser.by("exact"), subset, D)(x, dx, t, cond)
    _, secant = Push(model.denoiser.by("secant"), subset, D)(x, dx, t, cond)
    assert ((secant - exact).norm() / exact.norm()) < 1e-4


def test_tokens_are_unpacked_to_the_same_latents():
    x = torch.randn(2, 3, 4, 6)
    assert torch.equal(unpack(pack(x), 4, 6), x)
    assert torch.equal(pack(x), FluxPipeline._pack_latents(x, 2, 3, 4, 6))


def test_other_pipelines_are_refused_by_name():
    class StableDiffusionControlNetPipeline:
        scheduler = None

    with pytest.raises(
        ValueError, match="StableDiffusionControlNetPipeline is not supported by FlarePipeline"
    ):
        flare.FlarePipeline(StableDiffusionControlNetPipeline(), None)
    assert {"FluxPipeline", "PixArtSigmaPipeline", "StableDiffusionInpaintPipeline"} <= set(PIPELINES)
