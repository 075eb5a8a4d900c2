"""`flare.FlarePipeline`: a diffusers pipeline whose images come with their epistemic uncertainty."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from .networks import network_of
from .requests import intercept
from .schedulers import SCALING, options_of

OutputType = Literal["pil", "np", "pt", "latent"]
_DIT_GUIDANCE = 4.0  # default guidance_scale of DiTPipeline
_DIT_NULL_CLASS = 1000  # class label of DiTPipeline's unconditional branch


@dataclass(frozen=True)
class PipelineKind:
    """A supported pipeline class.

    Attributes:
        steps: its default number of inference steps.
        options: the options of its own that FlarePipeline takes.
        takes_labels: whether it is conditioned on class labels.
        takes_prompts: whether it is a text pipeline, which takes all of its own options.
        seeds_steps: whether the noise of its steps comes from its generator, as x_T does.
    """

    steps: int
    options: tuple[str, ...] = ()
    takes_labels: bool = False
    takes_prompts: bool = False
    seeds_steps: bool = True


PIPELINES: dict[str, PipelineKind] = {
    "DDPMPipeline": PipelineKind(1000),
    "DDIMPipeline": PipelineKind(50, ("eta", "use_clipped_model_output")),
    "DiTPipeline": PipelineKind(50, ("class_labels", "guidance_scale"), takes_labels=True, seeds_steps=False),
    "StableDiffusionPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusionXLPipeline": PipelineKind(50, takes_prompts=True),
    "StableDiffusion3Pipeline": PipelineKind(28, takes_prompts=True, seeds_steps=False),
}


@dataclass(frozen=True)
class _Task:
    """One call: the model, x_T as the network sees it, noise per step, conditions, options of `steps`."""

    model: DiffusersModel
    start: Tensor
    noise: Callable[[], Tensor]
    cond: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


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
        pipe: a DDPMPipeline, DDIMPipeline, DiTPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
            or StableDiffusion3Pipeline.
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
        prompted = PIPELINES[self.kind].takes_prompts
        scheduler = type(pipe.scheduler).__name__
        if not prompted and scheduler in SCALING:
            raise ValueError(
                f"{self.kind} does not scale the inputs of an {scheduler}; use flare.sample with "
                "flare.from_diffusers(pipe).steps(n), or a DDIMScheduler."
            )
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"posterior must be a fitted posterior, got {type(posterior).__name__}. Fit one with "
                "model = flare.from_diffusers(pipe), flare.posteriors.dense(model.denoiser, "
                "flare.subsets.random(model.denoiser, count=2000), model.pairs(images)), or load a saved one "
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
            task = self._make_task(batch_size if first is None else first, generator, own)
        decoded = task.model.vae is not None and output_type != "latent"
        steps = task.model.steps(count, **task.options)
        denoiser = task.model.denoiser
        result = sample(
            denoiser,
            steps,
            self.posterior,
            start=unscale_input(denoiser.prediction, task.start, steps.transitions[0].level.sigma),
            noise=task.noise,
            cond=task.cond,
            observe=task.model.decode if decoded else None,
            batch_size=len(task.start),
            seed=seed,
            progress=self.pipe.progress_bar,
            **self.options,
        )
        if _draws_unused_noise(self.pipe.scheduler, steps, task.options.get("eta", 0.0)):
            task.noise()  # leaves the generator in the same state as the wrapped pipeline does
        return self._output(result, output_type, return_dict)

    def _make_task(self, batch_size: int | None, generator: Any, own: dict[str, Any]) -> _Task:
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
        return _Task(model, start, lambda: self._draw_noise((rows, *shape[1:]), source)[:n], cond, own)

    def _make_prompt_task(
        self, batch_size: int | None, generator: Any, count: int, own: dict[str, Any]
    ) -> _Task:
        """The task of a text pipeline, with x_T and the conditions that the pipeline itself makes."""
        if batch_size is not None:
            raise ValueError(
                f"{self.kind} makes num_images_per_prompt images for each prompt; leave batch_size out."
            )
        if options_of(self.pipe.scheduler).get("use_dynamic_shifting") and own.get("mu") is None:
            raise ValueError(
                "the scheduler shifts its noise levels with the image size (use_dynamic_shifting), but no "
                "shift was given; pass mu=..."
            )
        request = intercept(self.pipe, generator=generator, num_inference_steps=count, **own)
        model = self.model.with_guidance(request.guidance) if request.guidance else self.model
        source = generator if PIPELINES[self.kind].seeds_steps else None
        options: dict[str, Any] = {name: own[name] for name in ("eta", "mu") if name in own}
        shape = tuple(request.start.shape)
        return _Task(model, request.start, lambda: self._draw_noise(shape, source), request.cond, options)

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
        # the output class is in the module of the pipeline
        module = sys.modules[type(self.pipe).__module__]
        make = getattr(module, f"{self.kind}Output", None) or module.ImagePipelineOutput
        output = make(images=images, **more)
        output["scores"], output["uncertainty_maps"] = score, maps
        return output

    def _images(self, raw: Tensor, output_type: OutputType | None) -> tuple[Any, dict[str, Any]]:
        """The images in the format of the pipeline's output, from images in [−1, 1], and its other fields."""
        pipe, checks, flags = self.pipe, hasattr(self.pipe, "run_safety_checker"), None
        images: Any = raw
        if output_type != "latent":
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
