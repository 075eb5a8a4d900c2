"""`flare.FlarePipeline`: a diffusers pipeline whose images come with their epistemic uncertainty."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import DIRECTIONS
from ..core.progress import warn
from ..diffusion.parameterizations import unscale_input
from ..diffusion.samplers import Steps
from ..model import Model
from ..posteriors import Posterior
from ..results.result import Result
from ..sampling.sample import sample
from ..scores import SCORES
from . import interception
from .diffusers import from_diffusers
from .diffusers_networks import network_of, pack, unpack

OutputType = Literal["pil", "np", "pt", "latent"]
#: the supported pipelines, and whether the noise of their steps comes from their generator, as x_T does
PIPELINES = {
    "DDPMPipeline": True,
    "DDIMPipeline": True,
    "DiTPipeline": False,
    "StableDiffusionPipeline": True,
    "StableDiffusionImg2ImgPipeline": True,
    "StableDiffusionInpaintPipeline": True,
    "StableDiffusionXLPipeline": True,
    "StableDiffusionXLImg2ImgPipeline": True,
    "StableDiffusionXLInpaintPipeline": True,
    "StableDiffusion3Pipeline": False,
    "StableDiffusion3Img2ImgPipeline": False,
    "PixArtAlphaPipeline": True,
    "PixArtSigmaPipeline": True,
    "FluxPipeline": False,
    "FluxImg2ImgPipeline": False,
}


class FlarePipeline:
    """A diffusers pipeline whose output also has `scores` and `uncertainty_maps`.

    With the same generator, the wrapped pipeline returns the same images, up to rounding.

    >>> model = flare.from_diffusers(pipe)
    >>> pairs = model.pairs(images, n=50, seed=0)
    >>> subset = flare.subsets.random(model.denoiser, count=50)
    >>> posterior = flare.posteriors.dense(model.denoiser, subset, pairs)
    >>> scored = flare.FlarePipeline(pipe, posterior, directions=2)
    >>> output = scored(batch_size=4, num_inference_steps=5)
    >>> len(output.images), output.scores.shape, output.uncertainty_maps.shape
    (4, torch.Size([4]), torch.Size([4, 1, 8, 8]))

    Args:
        pipe: One of `integrations.pipeline.PIPELINES`: unconditional, with class labels, text-to-image
            (Stable Diffusion, XL and 3, PixArt, Flux), image-to-image, or inpainting.
        posterior: The posterior over the parameters of `flare.from_diffusers(pipe).denoiser`.
        directions: The number of posterior draws to propagate.
        derivative: `exact`, `compiled`, `secant` or `auto`; see `flare.sample`.
        score: The name of a score; see `flare.sample`.
    """

    def __init__(
        self,
        pipe: Any,
        posterior: Posterior,
        *,
        directions: int = DIRECTIONS,
        derivative: str = "auto",
        score: str | None = None,
    ) -> None:
        kind = type(pipe).__name__
        if kind not in PIPELINES:
            raise ValueError(
                f"{kind} is not supported by FlarePipeline, which supports {', '.join(PIPELINES)}; "
                "sample with model = flare.from_diffusers(pipe), flare.sample(model.denoiser, "
                "model.steps(50), posterior, cond=..., observe=model.decode)."
            )
        _check_parts(pipe)
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"posterior must be a fitted posterior, got {type(posterior).__name__}. Fit one with "
                "model = flare.from_diffusers(pipe), flare.posteriors.dense(model.denoiser, "
                "flare.subsets.random(model.denoiser, count=1000), model.pairs(images)), or load a saved one "
                "with flare.posteriors.load(path, model.denoiser)."
            )
        self.pipe, self.posterior = pipe, posterior
        self.directions, self.derivative = directions, derivative
        # the maps need a propagated spread, which scores of finished samples do without
        self.score = score if score is None or SCORES.find(score).needs_directions else [score, "trace"]
        posterior.check(self.model.denoiser)

    @property
    def model(self) -> Model:
        """The model of the pipeline in its current state."""
        return from_diffusers(self.pipe)

    def __call__(
        self,
        first: Any = None,
        *,
        generator: Any = None,
        output_type: OutputType | None = "pil",
        return_dict: bool = True,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Images with their uncertainty.

        Args:
            first: The first argument of the wrapped pipeline: batch_size, class_labels or prompt.
            generator: The generator of the noise, or a list of one per image, as for the wrapped pipeline.
            output_type: Format of the images: `pil`, `np` or `pt`; for a text pipeline also `latent`.
            return_dict: False for the tuple (images, scores, uncertainty_maps).
            seed: Random seed for the directions.
            **options: Options of the wrapped pipeline, such as num_inference_steps, eta, guidance_scale,
                negative_prompt or height, except those that change the steps (`interception.REFUSED`).

        Returns:
            The pipeline's output, with scores (n,) and uncertainty_maps (n, C, H, W) as tensors: the
            epistemic variance of every pixel of images in [0, 1], before clamping. Images that were lost to
            NaN or infinity are black; their scores and maps are NaN.
        """
        names = interception.parameters_of(self.pipe)
        if output_type == "latent" and "prompt" not in names:
            raise ValueError(
                f"{type(self.pipe).__name__} has no output_type='latent'; use 'pil', 'np' or 'pt'."
            )
        if first is not None:
            options = {next(iter(names)): first} | options
        call = interception.intercept(self.pipe, generator=generator, **options)
        model = self.model.with_guidance(call.guidance) if call.guidance else self.model
        # the pipeline has set its scheduler, with shifts that depend on the size of the image
        eta, use_clipped = options.get("eta", 0.0), bool(options.get("use_clipped_model_output"))
        steps = model.steps(None, skipped=call.skipped, eta=eta, use_clipped=use_clipped)
        prediction, sigma = model.denoiser.prediction, steps.transitions[0].level.sigma
        noise = self._noise(call, generator)
        result = sample(
            model.denoiser,
            steps,
            self.posterior,
            start=unscale_input(prediction, call.start, sigma),
            noise=noise,
            cond=call.cond,
            observe=None if model.codec is None or output_type == "latent" else self._decoder(model, options),
            directions=self.directions,
            derivative=self.derivative,
            score=self.score,
            batch_size=len(call.start),
            seed=seed,
            progress=self.pipe.progress_bar,
        )
        if _draws_unused_noise(self.pipe.scheduler, steps, eta):
            noise()  # leaves the generator in the same state as the wrapped pipeline does
        return self._output(result, output_type, return_dict)

    def _noise(self, call: interception.FirstCall, generator: Any) -> Callable[[], Tensor]:
        """A function that draws the noise of a step as the pipeline does."""
        from diffusers.utils.torch_utils import randn_tensor

        start, packs = call.start, interception.embeds_guidance(self.pipe)
        n, *shape = pack(start).shape if packs else start.shape
        if call.guidance and interception.puts_condition_first(self.pipe):
            n *= 2  # the steps of such a pipeline have both branches of the guidance
        network: Any = network_of(self.pipe)
        source = generator if PIPELINES[type(self.pipe).__name__] else None

        def draw() -> Tensor:
            drawn = randn_tensor((n, *shape), source, network.device, network.dtype)[: len(start)]
            return unpack(drawn, *start.shape[2:]) if packs else drawn

        return draw

    def _decoder(self, model: Model, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
        """The images of latents, resized as the pipeline does."""
        pipe = self.pipe
        if not interception.option_of(pipe, options, "use_resolution_binning", False):
            return model.decode
        size = pipe.transformer.config.sample_size * pipe.vae_scale_factor
        width, height = (options.get(name) or size for name in ("width", "height"))
        resize = pipe.image_processor.resize_and_crop_tensor
        return lambda latents: resize(model.decode(latents), width, height)

    def _output(self, result: Result, output_type: OutputType | None, return_dict: bool) -> Any:
        raw, maps = result.observed, result.observed_variance
        if raw is None:
            raw, maps = result.samples, result.variance
        assert maps is not None
        lost = ~raw.isfinite().flatten(1).all(1)
        if (lost & ~result.lost).any():
            rows = lost.nonzero().flatten().tolist()
            warn(f"the decoder returns NaN or infinity for images {rows}.")
        score = result.score.masked_fill(lost, torch.nan)
        images, more = self._images(raw, output_type)
        maps = maps if output_type == "latent" else maps / 4  # the variance of x/2 + 1/2
        if not return_dict:
            return images, score, maps
        # the output class is in the module of the pipeline, and the only one of its kind there
        names = vars(sys.modules[type(self.pipe).__module__])
        make = next(value for name, value in names.items() if name.endswith("PipelineOutput"))
        output = make(images=images, **more)
        output["scores"], output["uncertainty_maps"] = score, maps
        return output

    def _images(self, raw: Tensor, output_type: OutputType | None) -> tuple[Any, dict[str, Any]]:
        """The images in the format of the pipeline's output, from images in [−1, 1], and its other fields."""
        from diffusers.image_processor import VaeImageProcessor

        pipe, checks, flags = self.pipe, hasattr(self.pipe, "run_safety_checker"), None
        images: Any = raw
        if output_type == "latent":
            images = pack(raw) if interception.embeds_guidance(pipe) else raw
        else:
            images = raw.where(raw.isfinite(), -1.0)  # lost images are black; their scores are NaN
            if checks:
                images, flags = pipe.run_safety_checker(images, raw.device, raw.dtype)
            if getattr(pipe, "watermark", None) is not None:
                images = pipe.watermark.apply_watermark(images)
            clean = [not flag for flag in flags or [False] * len(images)]
            processor = getattr(pipe, "image_processor", None) or VaeImageProcessor()
            images = processor.postprocess(images, output_type=output_type, do_denormalize=clean)
        return images, {"nsfw_content_detected": flags} if checks else {}


def _draws_unused_noise(scheduler: Any, steps: Steps, eta: float) -> bool:
    """Whether a diffusers scheduler draws noise for a last step that adds none."""
    last, name = steps.transitions[-1], type(scheduler).__name__
    draws = (name == "DDIMScheduler" and eta > 0) or (name == "DDPMScheduler" and last.level.time > 0)
    return draws and last.c == 0


def _check_parts(pipe: Any) -> None:
    """Raise if a pipeline does something outside of the network that a sampler table cannot represent."""
    kind, scheduler, names = type(pipe).__name__, pipe.scheduler, interception.parameters_of(pipe)
    if "prompt" not in names and getattr(scheduler, "init_noise_sigma", 1.0) != 1.0:
        raise ValueError(
            f"{kind} does not scale the inputs of an {type(scheduler).__name__}; use flare.sample with "
            "flare.from_diffusers(pipe).steps(n), or a DDIMScheduler."
        )
    if "mask_image" not in names:
        return
    channels = pipe.unet.config.in_channels
    if channels == pipe.unet.config.out_channels:
        raise ValueError(
            f"{kind} with a UNet of {channels} input channels is not supported: it blends the image into the "
            "sample after every step. Use an inpainting model, whose UNet takes the mask and the image as "
            "channels (in_channels=9)."
        )
    if type(pipe.vae).__name__ == "AsymmetricAutoencoderKL":
        raise ValueError(
            f"{kind} with an AsymmetricAutoencoderKL is not supported: its decoder also takes the image. Use "
            "the model's own AutoencoderKL."
        )
