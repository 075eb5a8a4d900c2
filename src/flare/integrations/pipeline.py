"""`flare.FlarePipeline`: a diffusers pipeline whose images come with their epistemic uncertainty."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.defaults import DIRECTIONS
from ..core.warn import warn
from ..diffusion.parameterizations import unscale_input
from ..diffusion.samplers import Steps
from ..posteriors import Posterior
from ..results.result import Result
from ..sampling.sample import sample
from ..scores import SCORES
from .diffusers import DiffusersModel, from_diffusers
from .kinds import PIPELINES
from .networks import Network, network_of
from .packing import pack, unpack
from .requests import intercept
from .schedulers import SCALING

OutputType = Literal["pil", "np", "pt", "latent"]
_DIT_GUIDANCE = 4.0  # default guidance_scale of DiTPipeline
_DIT_NULL_CLASS = 1000  # class label of DiTPipeline's unconditional branch


@dataclass(frozen=True)
class _Task:
    """One call.

    Attributes:
        model: the network, with guidance.
        steps: the sampler's table.
        start: the first state as the network sees it.
        noise: draws the noise of a step.
        cond: the conditions.
        decode: the images of latents; None in pixel space.
    """

    model: DiffusersModel
    steps: Steps
    start: Tensor
    noise: Callable[[], Tensor]
    cond: dict[str, Any] | None = None
    decode: Callable[[Tensor], Tensor] | None = None


class FlarePipeline:
    """A diffusers pipeline whose output also has `scores` and `uncertainty_maps`.

    With the same generator, the images equal those of the wrapped pipeline up to rounding.

    >>> model = flare.from_diffusers(pipe)
    >>> pairs = model.pairs(images, n=50, seed=0)
    >>> subset = flare.subsets.random(model.denoiser, count=50)
    >>> posterior = flare.posteriors.dense(model.denoiser, subset, pairs)
    >>> scored = flare.FlarePipeline(pipe, posterior, directions=2)
    >>> output = scored(batch_size=4, num_inference_steps=5)
    >>> len(output.images), output.scores.shape, output.uncertainty_maps.shape
    (4, torch.Size([4]), torch.Size([4, 1, 8, 8]))

    Args:
        pipe: one of `integrations.pipeline.PIPELINES`: unconditional, with class labels, from text to image
            (Stable Diffusion, XL and 3, PixArt, Flux), from image to image, or inpainting.
        posterior: over the parameters of `flare.from_diffusers(pipe).denoiser`.
        directions: the number of posterior draws to propagate.
        derivative: `exact`, `compiled`, `secant` or `auto`; see `flare.sample`.
        score: the name of a score; see `flare.sample`.
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
        self.kind = type(pipe).__name__
        if self.kind not in PIPELINES:
            raise ValueError(
                f"{self.kind} is not supported by FlarePipeline, which supports {', '.join(PIPELINES)}; "
                "sample with model = flare.from_diffusers(pipe), flare.sample(model.denoiser, "
                "model.steps(50), posterior, cond=..., observe=model.decode)."
            )
        kind, scheduler = PIPELINES[self.kind], type(pipe.scheduler).__name__
        if kind.paints_masks:
            _check_inpainting(self.kind, pipe)
        if not kind.takes_prompts and scheduler in SCALING:
            raise ValueError(
                f"{self.kind} does not scale the inputs of an {scheduler}; use flare.sample with "
                "flare.from_diffusers(pipe).steps(n), or a DDIMScheduler."
            )
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"posterior must be a fitted posterior, got {type(posterior).__name__}. Fit one with "
                "model = flare.from_diffusers(pipe), flare.posteriors.dense(model.denoiser, "
                "flare.subsets.random(model.denoiser, count=1000), model.pairs(images)), or load a saved one "
                "with flare.posteriors.load(path, model.denoiser)."
            )
        self.pipe, self.posterior = pipe, posterior
        # the maps need a propagated spread, which scores of finished samples do without
        scores = score if score is None or SCORES.find(score).needs_directions else [score, "trace"]
        self.options: dict[str, Any] = {"directions": directions, "derivative": derivative, "score": scores}
        posterior.check(self.model.denoiser)

    @property
    def model(self) -> DiffusersModel:
        """The denoiser, schedule and sampler of the pipeline in its current state."""
        return from_diffusers(self.pipe)

    def __call__(
        self,
        first: Any = None,
        *,
        batch_size: int | None = None,
        generator: Any = None,
        num_inference_steps: int | None = None,
        output_type: OutputType | None = "pil",
        return_dict: bool = True,
        seed: int = 0,
        **own: Any,
    ) -> Any:
        """Images with their uncertainty.

        Args:
            first: the first argument of the wrapped pipeline: batch_size or prompt.
            batch_size: the number of images. A DiTPipeline makes one image per class label; a text pipeline
                makes num_images_per_prompt images per prompt.
            generator: of the noise, or a list of one per image, as for the wrapped pipeline.
            num_inference_steps: by default that of the wrapped pipeline.
            output_type: format of the images: `pil`, `np` or `pt`; for a text pipeline also `latent`.
            return_dict: False for the tuple (images, scores, uncertainty_maps).
            seed: of the directions.
            **own: options of the wrapped pipeline: eta and use_clipped_model_output for a DDIMPipeline,
                class_labels and guidance_scale for a DiTPipeline; prompt, negative_prompt, guidance_scale,
                height and so on for a text pipeline, except those that change the steps
                (`requests.REFUSED`).

        Returns:
            The pipeline's output, with scores (n,) and uncertainty_maps (n, C, H, W) as tensors: the
            epistemic variance of every pixel of images in [0, 1], before clamping. Images that were lost to
            NaN or infinity are black; their scores and maps are NaN.
        """
        kind = PIPELINES[self.kind]
        if output_type == "latent" and not kind.takes_prompts:
            raise ValueError(f"{self.kind} has no output_type='latent'; use 'pil', 'np' or 'pt'.")
        count = num_inference_steps or kind.steps
        if kind.takes_prompts:
            own |= {} if first is None else {"prompt": first}
            task = self._make_prompt_task(batch_size, generator, count, own)
        else:
            task = self._make_task(batch_size if first is None else first, generator, count, own)
        steps, denoiser = task.steps, task.model.denoiser
        result = sample(
            denoiser,
            steps,
            self.posterior,
            start=unscale_input(denoiser.prediction, task.start, steps.transitions[0].level.sigma),
            noise=task.noise,
            cond=task.cond,
            observe=None if output_type == "latent" else task.decode,
            batch_size=len(task.start),
            seed=seed,
            progress=self.pipe.progress_bar,
            **self.options,
        )
        if _draws_unused_noise(self.pipe.scheduler, steps, own.get("eta", 0.0)):
            task.noise()  # leaves the generator in the same state as the wrapped pipeline does
        return self._output(result, output_type, return_dict)

    def _make_task(self, batch_size: int | None, generator: Any, count: int, own: dict[str, Any]) -> _Task:
        """The task of an unconditional or class-conditional pipeline, with x_T drawn here."""
        kind = PIPELINES[self.kind]
        if unknown := [name for name in own if name not in kind.options]:
            has = f"takes {', '.join(kind.options)}" if kind.options else "has no options of its own"
            raise ValueError(f"{self.kind} has no option {unknown[0]!r}; it {has}.")
        labels = own.pop("class_labels", None)
        n = self._count_images(batch_size, labels)
        model, cond, doubled = self.model, None, False
        if kind.takes_labels:
            cond = {"class_labels": torch.as_tensor(labels).reshape(-1).to(model.denoiser.device)}
            scale = own.pop("guidance_scale", _DIT_GUIDANCE)
            doubled = scale > 1
            model = model.with_guidance(scale - 1, {"class_labels": _DIT_NULL_CLASS}) if doubled else model
        if own.pop("use_clipped_model_output", None):
            own["use_clipped"] = True
        shape = (n, *model.shape)
        start = self._draw_noise(shape, generator)
        source = generator if kind.seeds_steps else None
        rows = 2 * n if doubled else n  # DiTPipeline draws noise for both branches of the guidance
        noise = partial(self._draw_noise, (rows, *shape[1:]), source)
        decode = None if model.vae is None else model.decode
        return _Task(model, model.steps(count, **own), start, lambda: noise()[:n], cond, decode)

    def _make_prompt_task(
        self, batch_size: int | None, generator: Any, count: int, own: dict[str, Any]
    ) -> _Task:
        """The task of a text pipeline, with x_T and the conditions that the pipeline itself makes."""
        if batch_size is not None:
            raise ValueError(
                f"{self.kind} makes num_images_per_prompt images for each prompt; leave batch_size out."
            )
        request = intercept(self.pipe, generator=generator, num_inference_steps=count, **own)
        model = self.model.with_guidance(request.guidance) if request.guidance else self.model
        # the pipeline has set its scheduler, with shifts that depend on the size of the image
        steps = model.steps(None, skipped=request.skipped, eta=own.get("eta", 0.0))
        source = generator if PIPELINES[self.kind].seeds_steps else None
        start, packs = request.start, self._packs

        def noise() -> Tensor:
            drawn = self._draw_noise(pack(start).shape if packs else start.shape, source)
            return unpack(drawn, *start.shape[2:]) if packs else drawn

        return _Task(model, steps, start, noise, request.cond, self._decoder(model, own))

    @property
    def _packs(self) -> bool:
        network = self.model.denoiser
        return isinstance(network, Network) and network.packs

    def _decoder(self, model: DiffusersModel, own: dict[str, Any]) -> Callable[[Tensor], Tensor]:
        """The images of latents, resized as the pipeline does."""
        if not PIPELINES[self.kind].resizes or not own.get("use_resolution_binning", True):
            return model.decode
        pipe = self.pipe
        size = pipe.transformer.config.sample_size * pipe.vae_scale_factor
        width, height = (own.get(name) or size for name in ("width", "height"))
        resize = pipe.image_processor.resize_and_crop_tensor
        return lambda latents: resize(model.decode(latents), width, height)

    def _count_images(self, batch_size: int | None, labels: Sequence[int] | Tensor | None) -> int:
        if not PIPELINES[self.kind].takes_labels:
            return 1 if batch_size is None else batch_size
        if labels is None:
            raise ValueError(
                f"{self.kind} needs class_labels, one per image, such as class_labels=[207, 360]."
            )
        n = len(torch.as_tensor(labels).reshape(-1))
        if batch_size not in (None, n):
            raise ValueError(f"{n} class_labels make {n} images, got batch_size={batch_size}; leave it out.")
        return n

    def _draw_noise(self, shape: Sequence[int], generator: Any) -> Tensor:
        """Standard normal noise, drawn by the function that pipelines use."""
        from diffusers.utils.torch_utils import randn_tensor

        network: Any = network_of(self.pipe)
        return randn_tensor(tuple(shape), generator=generator, device=network.device, dtype=network.dtype)

    def _output(self, result: Result, output_type: OutputType | None, return_dict: bool) -> Any:
        decoded = result.observed is not None
        raw = result.observed if decoded else result.samples
        maps = result.observed_variance if decoded else result.variance
        assert raw is not None
        assert maps is not None
        lost = ~raw.isfinite().flatten(1).all(1)
        if decoded and (lost & ~result.lost).any():
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
        pipe, checks, flags = self.pipe, hasattr(self.pipe, "run_safety_checker"), None
        images: Any = raw
        if output_type == "latent":
            images = pack(raw) if self._packs else raw
        else:
            images = raw.where(raw.isfinite(), -1.0)  # lost images are black; their scores are NaN
            if checks:
                images, flags = pipe.run_safety_checker(images, raw.device, raw.dtype)
            if getattr(pipe, "watermark", None) is not None:
                images = pipe.watermark.apply_watermark(images)
            clean = [not flag for flag in flags or [False] * len(images)]
            images = self._processor.postprocess(images, output_type=output_type, do_denormalize=clean)
        return images, {"nsfw_content_detected": flags} if checks else {}

    @property
    def _processor(self) -> Any:
        from diffusers.image_processor import VaeImageProcessor

        return getattr(self.pipe, "image_processor", None) or VaeImageProcessor()


def _draws_unused_noise(scheduler: Any, steps: Steps, eta: float) -> bool:
    """Whether a diffusers scheduler draws noise for a last step that adds none."""
    last, name = steps.transitions[-1], type(scheduler).__name__
    draws = (name == "DDIMScheduler" and eta > 0) or (name == "DDPMScheduler" and last.level.time > 0)
    return draws and last.c == 0


def _check_inpainting(kind: str, pipe: Any) -> None:
    """Raise if a pipeline mixes the image into the samples or the decoder, outside of the network."""
    channels = pipe.unet.config.in_channels
    if channels == pipe.unet.config.out_channels:
        raise ValueError(
            f"{kind} with a UNet of {channels} input channels is not supported: it blends the image into the "
            "sample after every step. Use an inpainting model, whose UNet takes the mask and the image as "
            "channels (in_channels=9)."
        )
    if type(pipe.vae).__name__ == "AsymmetricAutoencoderKL":
        raise ValueError(
            f"{kind} with an AsymmetricAutoencoderKL is not supported: its decoder takes the image, too. Use "
            "the model's own AutoencoderKL."
        )
