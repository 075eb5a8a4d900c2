"""Pipelines for text: what they return, with scores, from the same generator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
)

import flare

pytest.importorskip("transformers")
PAGE = Path(__file__).parents[2] / "docs" / "text.md"
T = 20
SCHEDULERS = {
    "ddim": DDIMScheduler(T, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    "ddpm": DDPMScheduler(T, clip_sample=False),
    "dpm": DPMSolverMultistepScheduler(T),
    "edm": EDMEulerScheduler(),
    "edm dpm": EDMDPMSolverMultistepScheduler(sigma_max=20.0, sigma_data=0.8),
    "euler": EulerDiscreteScheduler(T),
    "flow": FlowMatchEulerDiscreteScheduler(T, shift=3.0),
    "heun": HeunDiscreteScheduler(T, use_karras_sigmas=True),
    "stochastic": FlowMatchEulerDiscreteScheduler(T, stochastic_sampling=True),
    "whole": DDIMScheduler(T, clip_sample=False),
    "offset": DDPMScheduler(T, clip_sample=False, steps_offset=1),
    "shifting": FlowMatchEulerDiscreteScheduler(T, use_dynamic_shifting=True),
}


def made(name, scheduler, **options):
    pipe = tiny.PROMPTED[name](SCHEDULERS[scheduler], **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def fitted(pipe):
    model = flare.from_diffusers(pipe)
    cond = flare.prompt_conditions(pipe, ["a cat", "dog", "red"], batch_size=2)
    pairs = model.pairs(torch.randn(3, *model.shape), n=20, cond=cond)
    subset = flare.subsets.random(model.denoiser, count=30, seed=0)
    return flare.posteriors.dense(model.denoiser, subset, pairs, 1.0)


def seeded():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [
        ("stable", "ddim", {}),
        ("stable", "ddim", {"eta": 0.7, "guidance_scale": 3.0}),
        ("stable", "ddpm", {"num_images_per_prompt": 2}),
        ("stable", "dpm", {"guidance_scale": 1.0}),  # no guidance
        ("stable", "euler", {"negative_prompt": ["bad", "worse"], "height": 8, "width": 24}),
        ("stable", "heun", {}),
        ("stable_xl", "euler", {}),
        ("stable_xl", "edm", {}),
        ("stable_xl", "edm dpm", {}),
        ("stable_xl", "ddim", {"num_images_per_prompt": 2, "crops_coords_top_left": (4, 0)}),
        ("stable_3", "flow", {}),
        ("stable_3", "flow", {"guidance_scale": 1.0, "negative_prompt": "bad"}),
    ],
)
def test_the_images_are_those_of_the_pipeline(name, scheduler, options):
    pipe = made(name, scheduler)
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    prompts = ["a cat", "dog"]
    call = {"num_inference_steps": 5, "output_type": "pt", **options}
    theirs = pipe(prompts, generator=seeded(), **call)
    ours = scored(prompts, generator=seeded(), **call)
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours.images, theirs.images, atol=2e-4, rtol=0.0)
    n = 2 * options.get("num_images_per_prompt", 1)
    assert ours.scores.shape == (n,)
    assert ours.uncertainty_maps.shape == theirs.images.shape
    assert (ours.uncertainty_maps > 0).any(dim=(1, 2, 3)).all()
    assert torch.isfinite(ours.scores).all()
    assert not pipe.components[("transformer" if name == "stable_3" else "unet")]._forward_pre_hooks
    latents = scored(prompts, generator=seeded(), **call | {"output_type": "latent"})
    torch.testing.assert_close(latents.scores, ours.scores)
    assert latents.uncertainty_maps.shape == latents.images.shape != ours.images.shape


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    [("stable", "whole", {"eta": 0.7}), ("stable", "ddpm", {}), ("stable_xl", "offset", {})],
)
def test_a_generator_goes_on_as_with_the_pipeline(name, scheduler, options):
    pipe = made(name, scheduler)
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    call = {"num_inference_steps": 4, "output_type": "pt", **options}
    ours, theirs = (
        [p("a cat", generator=source, **call).images for _ in range(2)]
        for p, source in ((scored, seeded()), (pipe, seeded()))
    )
    torch.testing.assert_close(torch.cat(ours), torch.cat(theirs), atol=2e-4, rtol=0.0)


def test_the_pipeline_is_taken_as_it_is_when_called():
    pipe = made("stable", "ddim")
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    # Euler itself never shifts
    shifting = {"num_train_timesteps": T, "use_dynamic_shifting": True}
    pipe.scheduler, pipe.vae = (
        EulerDiscreteScheduler.from_config(shifting),
        tiny.vae(out_channels=3, in_channels=3, scaling_factor=0.9),
    )
    call = {"num_inference_steps": 4, "output_type": "pt"}
    ours, theirs = (p("a cat", generator=seeded(), **call).images for p in (scored, pipe))
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0.0)
    pipe.scheduler = EulerDiscreteScheduler(1000)  # of other noise levels
    with pytest.raises(ValueError, match="this posterior was fitted for another schedule"):
        scored("a cat", generator=seeded(), **call)


def test_latents_are_scaled_as_the_pipeline_scales_them():
    pipe = made("stable_xl", "ddim", channels=4)
    mean, std = [0.3, -0.5, 0.1, 0.0], [0.7, 1.4, 1.0, 0.8]
    pipe.vae.register_to_config(latents_mean=mean, latents_std=std)
    call = {"num_inference_steps": 4, "output_type": "pt"}
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    ours, theirs = (p("a cat", generator=seeded(), **call).images for p in (scored, pipe))
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0.0)
    model, images = scored.model, torch.rand(2, 3, 16, 16) * 2 - 1
    factor, shift = torch.tensor(std) / 0.5, torch.tensor(mean)
    raw = model.encode(images) * factor[:, None, None] + shift[:, None, None]
    with torch.no_grad():
        torch.testing.assert_close(raw, pipe.vae.encode(images).latent_dist.mode())


def test_a_decoder_that_overflows_in_float16_is_widened():
    pipe = made("stable_xl", "ddim")
    with torch.no_grad():
        pipe.vae.decoder.conv_out.weight.mul_(1e5)
        pipe.vae.decoder.conv_out.bias.zero_()
    posterior = fitted(pipe.to(torch.float16))
    call = {"num_inference_steps": 3, "output_type": "pt"}
    assert pipe.vae.config.force_upcast
    output = flare.FlarePipeline(pipe, posterior, directions=2)("a cat", generator=seeded(), **call)
    theirs = pipe("a cat", generator=seeded(), **call).images
    assert (output.images.float() - theirs.float()).abs().median() < 0.01
    assert pipe.vae.dtype is torch.float16
    pipe.vae.register_to_config(force_upcast=False)
    with pytest.warns(RuntimeWarning, match=r"the decoder returns NaN or infinity for images \[0\]"):
        output = flare.FlarePipeline(pipe, posterior, directions=2)("a cat", generator=seeded(), **call)
    assert output.scores.isnan().all()


def test_a_stochastic_flow_draws_as_the_pipeline_does():
    pipe = made("stable_3", "stochastic")
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    images = []
    for p in (scored, pipe):
        torch.manual_seed(4)
        images.append(p("a cat", generator=seeded(), num_inference_steps=4, output_type="pt").images)
    torch.testing.assert_close(*images, atol=2e-4, rtol=0.0)


def test_the_variance_of_guidance_is_that_of_rerun_models():
    pipe = made("stable", "ddim")
    posterior = fitted(pipe)
    scored = flare.FlarePipeline(pipe, posterior, directions=3, derivative="exact", score="trace")
    call = {"num_inference_steps": 4, "output_type": "latent", "guidance_scale": 3.0}
    ours = scored("a cat", generator=seeded(), **call)
    generator = torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(0, -1))
    D = posterior.directions(3, generator)
    h, total = 1e-3, 0.0
    for k in range(3):
        ends = []
        for sign in (1, -1):
            own = flare.from_diffusers(pipe).denoiser
            params = posterior.subset.params(own)
            moved = posterior.subset.scatter(sign * h * D[:, k][None])
            other = own.with_params({name: params[name] + moved[name][0] for name in params})
            kept, pipe.unet = pipe.unet, other.module
            ends.append(pipe("a cat", generator=seeded(), **call).images)
            pipe.unet = kept
        total = total + ((ends[0] - ends[1]) / (2 * h)).square()
    torch.testing.assert_close(ours.uncertainty_maps, total, rtol=0.05, atol=float(total.max()) * 1e-3)


def test_what_the_rows_cannot_follow_is_refused():
    pipe = made("stable", "ddim")
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    with pytest.raises(ValueError, match="guidance_rescale is not supported"):
        scored("a cat", guidance_rescale=0.7)
    with pytest.raises(ValueError, match="sigmas is not supported"):
        scored("a cat", sigmas=torch.linspace(1, 0.1, 5))
    with pytest.raises(ValueError, match="unknown option of StableDiffusionPipeline 'batch_size'"):
        scored("a cat", batch_size=3)
    assert not pipe.unet._forward_pre_hooks
    with pytest.raises(ValueError, match="PNDMScheduler"):
        flare.FlarePipeline(
            StableDiffusionPipeline(
                **{**pipe.components, "scheduler": PNDMScheduler(T)}, requires_safety_checker=False
            ),
            scored.posterior,
        )
    third = made("stable_3", "shifting")
    call = {"num_inference_steps": 4, "output_type": "pt", "mu": 0.6}
    ours = flare.FlarePipeline(third, fitted(third), directions=2)("a cat", generator=seeded(), **call)
    torch.testing.assert_close(
        ours.images, third("a cat", generator=seeded(), **call).images, atol=2e-4, rtol=0
    )


def test_images_that_a_checker_flags_are_black_and_said_to_be():
    pipe = made("stable", "ddim")
    pipe.run_safety_checker = lambda image, device, dtype: (torch.zeros_like(image), [True] * len(image))
    scored = flare.FlarePipeline(pipe, fitted(pipe), directions=2)
    call = {"num_inference_steps": 3, "output_type": "pt"}
    ours, theirs = (p("a cat", generator=seeded(), **call) for p in (scored, pipe))
    assert ours.nsfw_content_detected == theirs.nsfw_content_detected == [True]
    assert torch.equal(ours.images, theirs.images)


@pytest.mark.filterwarnings("ignore:prior_precision was tuned")
def test_the_code_of_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {"pipe": made("stable", "ddim"), "images": torch.rand(3, 3, 16, 16) * 2 - 1}
    exec(compile(block, str(PAGE), "exec"), {}, names | {"captions": ["a cat", "dog", "red"]})


def test_conditions_of_prompts_are_those_of_the_pipeline():
    pipe = made("stable_xl", "ddim")
    prompts = ["a cat", "dog", "red"]
    cond = flare.prompt_conditions(pipe, prompts, batch_size=2)
    text, _, pooled, _ = pipe.encode_prompt(prompts, do_classifier_free_guidance=False)
    torch.testing.assert_close(cond["encoder_hidden_states"], text)
    torch.testing.assert_close(cond["added_cond_kwargs"]["text_embeds"], pooled)
    assert cond["added_cond_kwargs"]["time_ids"].shape == (3, 6)
    with pytest.raises(ValueError, match="a list of at least one text, got 'a cat'"):
        flare.prompt_conditions(pipe, "a cat")
    noise = torch.random.get_rng_state()
    second = ["x", "y", "z"]
    both = flare.prompt_conditions(pipe, prompts, batch_size=2, prompt_2=second)
    text, *_ = pipe.encode_prompt(prompts, second, do_classifier_free_guidance=False)
    torch.testing.assert_close(both["encoder_hidden_states"], text)
    assert torch.equal(noise, torch.random.get_rng_state())
    with pytest.raises(ValueError, match="prompt_2 has 2 values for 3 prompts"):
        flare.prompt_conditions(pipe, prompts, prompt_2=["x", "y"])
    with pytest.raises(ValueError, match="guidance_scale is not for conditions"):
        flare.prompt_conditions(pipe, prompts, guidance_scale=7.5)
    pipe.unet = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="the network of StableDiffusionXLPipeline is not supported"):
        flare.prompt_conditions(pipe, prompts)
