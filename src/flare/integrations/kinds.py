"""The pipelines of diffusers that `FlarePipeline` supports, and how they differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineKind:
    """A supported pipeline class.

    Attributes:
        steps: its default number of inference steps.
        options: the options of its own that FlarePipeline takes.
        takes_labels: whether it is conditioned on class labels.
        takes_prompts: whether it is a text pipeline, which takes all of its own options.
        seeds_steps: whether the noise of its steps comes from its generator, as x_T does.
        resizes: whether it generates images of a few sizes and resizes them (`use_resolution_binning`).
        paints_masks: whether it fills in a mask, which its network must take as channels.
    """

    steps: int
    options: tuple[str, ...] = ()
    takes_labels: bool = False
    takes_prompts: bool = False
    seeds_steps: bool = True
    resizes: bool = False
    paints_masks: bool = False


PIPELINES: dict[str, PipelineKind] = {
    "DDPMPipeline": PipelineKind(1000),
    "DDIMPipeline": PipelineKind(50, ("eta", "use_clipped_model_output")),
    "DiTPipeline": PipelineKind(50, ("class_labels", "guidance_scale"), takes_labels=True, seeds_steps=False),
    "StableDiffusionPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusionImg2ImgPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusionInpaintPipeline": PipelineKind(50, takes_prompts=True, paints_masks=True),
    "StableDiffusionXLPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusionXLImg2ImgPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusionXLInpaintPipeline": PipelineKind(50, takes_prompts=True, paints_masks=True),
    "StableDiffusion3Pipeline": PipelineKind(28, takes_prompts=True, seeds_steps=False),
    "StableDiffusion3Img2ImgPipeline": PipelineKind(50, takes_prompts=True, seeds_steps=False),
    "PixArtAlphaPipeline": PipelineKind(20, takes_prompts=True, resizes=True),
    "PixArtSigmaPipeline": PipelineKind(20, takes_prompts=True, resizes=True),
    "FluxPipeline": PipelineKind(28, takes_prompts=True, seeds_steps=False),
    "FluxImg2ImgPipeline": PipelineKind(28, takes_prompts=True, seeds_steps=False),
}
