"""`flare.FlarePipeline`: a pipeline of diffusers whose images come with their epistemic uncertainty."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.defaults import DIRECTIONS
from ..diffusion.samplers import Steps
from ..posteriors import Posterior
from ..results.result import Result
from ..sampling.sample import sample
from .diffusers import DiffusersModel, from_diffusers
from .networks import network_of
from .requests import caught
from .schedulers import options_of

# the pipeline -> its default number of steps, and the options that are its own
PIPELINES: dict[str, tuple[int, tuple[str, ...]]] = {
    "DDPMPipeline": (1000, ()),
    "DDIMPipeline": (50, ("eta", "use_clipped_model_output")),
    "DiTPipeline": (50, ("class_labels", "guidance_scale")),
}
# pipelines for text, which take prompts and all else as they ever do, and their default number of steps
PROMPTED = {"StableDiffusionPipeline": 50, "StableDiffusionXLPipeline": 50, "StableDiffusion3Pipeline": 28}
_GUIDANCE = 4.0  # DiTPipeline's own
_NULL_CLASS = 1000  # DiTPipeline's label for no label


@dataclass(frozen=True)
class _Task:
    """What is to be sampled, and by whom: x_T, the noise of a step, the conditions, options of the steps."""

    flow: DiffusersModel
    start: Tensor
    noise: Callable[[], Tensor]
    cond: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


class FlarePipeline:
    """A pipeline that returns what the wrapped one returns, with `scores` and `uncertainty_maps` added.

    From the same generator the images are those of the wrapped pipeline, to rounding.

    >>> output = flare.FlarePipeline(pipe, posterior)(batch_size=64, num_inference_steps=50)  # doctest: +SKIP
    >>> output.images, output.scores, output.uncertainty_maps  # doctest: +SKIP
    >>> flare.FlarePipeline(stable_diffusion, posterior)("a cat", num_images_per_prompt=8)  # doctest: +SKIP

    Args:
        pipe: a DDPMPipeline, DDIMPipeline, DiTPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
            or StableDiffusion3Pipeline.
        posterior: over the parameters of `flare.from_diffusers(pipe).denoiser`.
        directions: how many draws of the posterior to push through.
        derivative: `exact`, `compiled`, `secant` or `auto`; see `flare.sample`.
        score: which score; see `flare.sample`.
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
        if self.kind not in {**PIPELINES, **PROMPTED}:
            raise ValueError(
                f"{self.kind} is not supported by FlarePipeline, which has "
                f"{', '.join([*PIPELINES, *PROMPTED])}; sample "
                "with flow = flare.from_diffusers(pipe), flare.sample(flow.denoiser, flow.steps(50), "
                "posterior, cond=..., observe=flow.decode)."
            )
        if self.kind in PIPELINES and type(pipe.scheduler).__name__ == "EulerDiscreteScheduler":
            raise ValueError(
                f"{self.kind} does not scale the inputs of an EulerDiscreteScheduler; use flare.sample with "
                "flare.from_diffusers(pipe).steps(n), or a DDIMScheduler."
            )
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"posterior must be a fitted posterior, got {type(posterior).__name__}. Fit one with "
                "flow = flare.from_diffusers(pipe), flare.posteriors.dense(flow.denoiser, "
                "flare.subsets.random(flow.denoiser, count=2000), flow.pairs(images)), or read a saved one "
                "with flare.posteriors.load(path, flow.denoiser)."
            )
        self.pipe, self.posterior = pipe, posterior
        self.options: dict[str, Any] = {"directions": directions, "derivative": derivative, "score": score}
        posterior.check(self.flow.denoiser)

    @property
    def flow(self) -> DiffusersModel:
        """What FLARE makes of the pipeline as it is now."""
        return from_diffusers(self.pipe)

    def __call__(
        self,
        first: Any = None,
        *,
        batch_size: int | None = None,
        generator: Any = None,
        num_inference_steps: int | None = None,
        output_type: str | None = "pil",
        return_dict: bool = True,
        seed: int = 0,
        **own: Any,
    ) -> Any:
        """Images with their uncertainty.

        Args:
            first: what the wrapped pipeline takes first: batch_size, or prompt.
            batch_size: how many images; of a DiTPipeline as many as class_labels, of one for text
                num_images_per_prompt for each prompt.
            generator: of the noise, or a list of one an image, as for the wrapped pipeline.
            num_inference_steps: by default that of the wrapped pipeline.
            output_type: `pil`, `np` or `pt`, of the images; for a pipeline for text also `latent`.
            return_dict: False for the tuple (images, scores, uncertainty_maps).
            seed: of the directions.
            **own: options of the wrapped pipeline: eta and use_clipped_model_output of a DDIMPipeline,
                class_labels and guidance_scale of a DiTPipeline; prompt, negative_prompt, guidance_scale,
                height and all else of one for text, but for what changes the steps (`requests.REFUSED`).

        Returns:
            The pipeline's output, with scores (n,) and uncertainty_maps (n, C, H, W) as tensors: the
            epistemic variance of every pixel, with images in [0, 1] and before they are clamped to it. An
            image that was lost to NaN or infinity is black, its score and its map are NaN.
        """
        if output_type == "latent" and self.kind not in PROMPTED:
            raise ValueError(f"a {self.kind} has no output_type='latent'; use 'pil', 'np' or 'pt'.")
        if self.kind in PROMPTED:
            count = num_inference_steps or PROMPTED[self.kind]
            own |= {} if first is None else {"prompt": first}
            task = self._prompted(batch_size, generator, count, own)
        else:
            count = num_inference_steps or PIPELINES[self.kind][0]
            task = self._drawn(batch_size if first is None else first, generator, own)
        decoded = task.flow.vae is not None and output_type != "latent"
        steps = task.flow.steps(count, **task.options)
        result = sample(
            task.flow.denoiser,
            steps,
            self.posterior,
            start=task.start,
            noise=task.noise,
            cond=task.cond,
            observe=task.flow.decode if decoded else None,
            batch_size=len(task.start),
            seed=seed,
            progress=self.pipe.progress_bar,
            **self.options,
        )
        if _draws_in_vain(self.pipe.scheduler, steps, task.options.get("eta", 0.0)):
            task.noise()  # so that a generator which is used again goes on as it does with the pipeline
        return self._output(result, output_type, return_dict)

    def _drawn(self, batch_size: int | None, generator: Any, own: dict[str, Any]) -> _Task:
        """A pipeline that draws x_T itself, of classes or of nothing."""
        known = PIPELINES[self.kind][1]
        if unknown := [name for name in own if name not in known]:
            has = f"has {', '.join(known)}" if known else "has no more options"
            raise ValueError(f"{self.kind} does not know {unknown[0]!r}; it {has}.")
        labels = own.pop("class_labels", None)
        n = self._count(batch_size, labels)
        flow, cond, doubled = self.flow, None, False
        if self.kind == "DiTPipeline":
            cond = {"class_labels": torch.as_tensor(labels).reshape(-1).to(flow.denoiser.device)}
            scale = own.pop("guidance_scale", _GUIDANCE)
            doubled = scale > 1
            flow = flow.with_guidance(scale - 1, {"class_labels": _NULL_CLASS}) if doubled else flow
        if own.pop("use_clipped_model_output", None):
            own["use_clipped"] = True
        shape = (n, *flow.shape)
        start = self._randn(shape, generator)
        if self.kind != "DiTPipeline":
            return _Task(flow, start, lambda: self._randn(shape, generator), cond, own)
        # it steps both branches of the guidance, and without its generator
        rows = 2 * n if doubled else n
        return _Task(flow, start, lambda: self._randn((rows, *shape[1:]), None)[:n], cond, own)

    def _prompted(self, batch_size: int | None, generator: Any, count: int, own: dict[str, Any]) -> _Task:
        """A pipeline for text: it says itself where it starts, and from what."""
        if batch_size is not None:
            raise ValueError(
                f"a {self.kind} makes num_images_per_prompt images for each prompt; leave batch_size out."
            )
        if options_of(self.pipe.scheduler).get("use_dynamic_shifting") and own.get("mu") is None:
            raise ValueError(
                "the scheduler shifts its levels by the size of the images; say by how much: mu=..."
            )
        asked = caught(self.pipe, generator=generator, num_inference_steps=count, **own)
        flow = self.flow.with_guidance(asked.guidance) if asked.guidance else self.flow
        # that for SD3 steps without its generator
        source = None if self.kind == "StableDiffusion3Pipeline" else generator
        options: dict[str, Any] = {name: own[name] for name in ("eta", "mu") if name in own}
        shape = tuple(asked.start.shape)
        return _Task(flow, asked.start, lambda: self._randn(shape, source), asked.cond, options)

    def _count(self, batch_size: int | None, labels: Sequence[int] | Tensor | None) -> int:
        if self.kind != "DiTPipeline":
            return 1 if batch_size is None else batch_size
        if labels is None:
            raise ValueError(
                "a DiTPipeline needs class_labels, one an image, such as class_labels=[207, 360]."
            )
        n = len(torch.as_tensor(labels).reshape(-1))
        if batch_size not in (None, n):
            raise ValueError(
                f"{n} class_labels make {n} images, but batch_size = {batch_size}; leave it out."
            )
        return n

    def _randn(self, shape: Sequence[int], generator: Any) -> Tensor:
        """Noise, drawn as pipelines draw it."""
        from diffusers.utils.torch_utils import randn_tensor

        network: Any = network_of(self.pipe)
        return randn_tensor(tuple(shape), generator=generator, device=network.device, dtype=network.dtype)

    def _output(self, result: Result, output_type: str | None, return_dict: bool) -> Any:
        decoded = result.observed is not None
        raw = result.observed if decoded else result.samples
        maps = result.observed_variance if decoded else result.variance
        assert raw is not None
        assert maps is not None
        lost = ~raw.isfinite().flatten(1).all(1)
        if decoded and (lost & ~result.lost).any():
            rows = lost.nonzero().flatten().tolist()
            warnings.warn(
                f"the decoder gives NaN or infinity for images {rows}.", RuntimeWarning, stacklevel=3
            )
        score = result.score.masked_fill(lost, torch.nan)
        images, more = self._images(raw, output_type)
        maps = maps if output_type == "latent" else maps / 4  # images are x/2 + 1/2
        if not return_dict:
            return images, score, maps
        # the output of every pipeline is known beside it
        module = sys.modules[type(self.pipe).__module__]
        make = getattr(module, f"{self.kind}Output", None) or module.ImagePipelineOutput
        output = make(images=images, **more)
        output["scores"], output["uncertainty_maps"] = score, maps
        return output

    def _images(self, raw: Tensor, output_type: str | None) -> tuple[Any, dict[str, Any]]:
        """The images of a pipeline's output, from those in [−1, 1], and what else is in it."""
        pipe, checks, flags = self.pipe, hasattr(self.pipe, "run_safety_checker"), None
        images: Any = raw
        if output_type != "latent":
            images = raw.where(raw.isfinite(), -1.0)  # a lost one is black; its score is NaN
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


def _draws_in_vain(scheduler: Any, steps: Steps, eta: float) -> bool:
    """Whether a scheduler of diffusers draws noise for a last step that adds none."""
    last, name = steps.transitions[-1], type(scheduler).__name__
    draws = (name == "DDIMScheduler" and eta > 0) or (name == "DDPMScheduler" and last.level.time > 0)
    return draws and last.c == 0
