"""`flare.FlarePipeline`: a pipeline of diffusers whose images come with their epistemic uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..posteriors import Posterior
from ..results import Result
from ..sampling import sample
from .diffusers import Flow, from_diffusers

# the pipeline -> its default number of steps, and the options that are its own
PIPELINES: dict[str, tuple[int, tuple[str, ...]]] = {
    "DDPMPipeline": (1000, ()),
    "DDIMPipeline": (50, ("eta", "use_clipped_model_output")),
    "DiTPipeline": (50, ("class_labels", "guidance_scale")),
}
_GUIDANCE = 4.0  # DiTPipeline's own
_NULL_CLASS = 1000  # DiTPipeline's label for no label


class FlarePipeline:
    """A pipeline that returns what the wrapped one returns, with `scores` and `uncertainty_maps` added.

    From the same generator the images are those of the wrapped pipeline, to rounding.

    >>> output = flare.FlarePipeline(pipe, posterior)(batch_size=64, num_inference_steps=50)  # doctest: +SKIP
    >>> output.images, output.scores, output.uncertainty_maps  # doctest: +SKIP

    Args:
        pipe: a DDPMPipeline, DDIMPipeline or DiTPipeline.
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
        directions: int = 8,
        derivative: str = "auto",
        score: str | None = None,
    ) -> None:
        self.kind = type(pipe).__name__
        if self.kind not in PIPELINES:
            raise ValueError(
                f"{self.kind} is not supported by FlarePipeline, which has {', '.join(PIPELINES)}; sample "
                "with flow = flare.from_diffusers(pipe), flare.sample(flow.denoiser, flow.steps(50), "
                "posterior, cond=..., observe=flow.decode)."
            )
        if type(pipe.scheduler).__name__ == "EulerDiscreteScheduler":
            raise ValueError(
                f"{self.kind} does not scale the inputs of an EulerDiscreteScheduler; use flare.sample with "
                "flare.from_diffusers(pipe).steps(n), or a DDIMScheduler."
            )
        self.pipe, self.posterior = pipe, posterior
        self.flow: Flow = from_diffusers(pipe)
        self.options: dict[str, Any] = {"directions": directions, "derivative": derivative, "score": score}
        posterior.check(self.flow.denoiser)

    def __call__(
        self,
        batch_size: int | None = None,
        *,
        generator: Any = None,
        num_inference_steps: int | None = None,
        output_type: str | None = "pil",
        return_dict: bool = True,
        seed: int = 0,
        **own: Any,
    ) -> Any:
        """Images with their uncertainty.

        Args:
            batch_size: how many images; for a DiTPipeline as many as class_labels.
            generator: of the noise, or a list of one an image, as for the wrapped pipeline.
            num_inference_steps: by default that of the wrapped pipeline.
            output_type: `pil`, `np` or `pt`, of the images.
            return_dict: False for the tuple (images, scores, uncertainty_maps).
            seed: of the directions.
            **own: options of the wrapped pipeline: eta and use_clipped_model_output of a DDIMPipeline,
                class_labels and guidance_scale of a DiTPipeline.

        Returns:
            The pipeline's output, with scores (n,) and uncertainty_maps (n, C, H, W) as tensors: the
            epistemic variance of every pixel, with images in [0, 1] and before they are clamped to it. An
            image that was lost to NaN or infinity is black, its score and its map are NaN.
        """
        default, known = PIPELINES[self.kind]
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
            flow = flow.guided(scale - 1, {"class_labels": _NULL_CLASS}) if doubled else flow
        if own.pop("use_clipped_model_output", None):
            own["use_clipped"] = True
        start, noise = self._noise(n, generator, doubled)
        result = sample(
            flow.denoiser,
            flow.steps(num_inference_steps or default, **own),
            self.posterior,
            start=start,
            noise=noise,
            cond=cond,
            observe=flow.decode if flow.vae is not None else None,
            batch_size=n,
            seed=seed,
            progress=self.pipe.progress_bar,
            **self.options,
        )
        return self._output(result, output_type, return_dict)

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

    def _noise(self, n: int, generator: Any, doubled: bool) -> tuple[Tensor, Any]:
        """x_T and the noise of the steps, drawn as the wrapped pipeline draws them."""
        from diffusers.utils.torch_utils import randn_tensor

        net = self.flow.denoiser
        options: Any = {"device": net.device, "dtype": net.dtype}
        shape = (n, *self.flow.shape)
        start = randn_tensor(shape, generator=generator, **options)
        if self.kind != "DiTPipeline":
            return start, lambda: randn_tensor(shape, generator=generator, **options)
        # it steps both branches of the guidance, and without its generator
        rows = 2 * n if doubled else n
        return start, lambda: randn_tensor((rows, *shape[1:]), **options)[:n]

    def _output(self, result: Result, output_type: str | None, return_dict: bool) -> Any:
        from diffusers import ImagePipelineOutput

        latent = result.observed is not None
        raw = result.observed if latent else result.samples
        variance = result.observed_variance if latent else result.variance
        assert raw is not None
        assert variance is not None
        maps, scores = variance / 4, result.score  # images are x/2 + 1/2
        images: Any = (raw / 2 + 0.5).clamp(0, 1).nan_to_num()  # a lost one is black; its score is NaN
        if output_type != "pt":
            images = images.cpu().permute(0, 2, 3, 1).float().numpy()
            images = self.pipe.numpy_to_pil(images) if output_type == "pil" else images
        if not return_dict:
            return images, scores, maps
        make: Any = ImagePipelineOutput
        output = make(images=images)
        output["scores"], output["uncertainty_maps"] = scores, maps
        return output
