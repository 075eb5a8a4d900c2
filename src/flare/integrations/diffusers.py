"""`flare.from_diffusers`: the denoiser, the schedule and the sampler of a diffusers pipeline."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.validation import require_samples
from ..diffusion.noising import Pairs, pairs
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..diffusion.steps import Threshold
from ..network.denoiser import Denoiser
from ..network.guidance import guide
from ..storage.checkpoint import load_json
from .networks import Network, check_channels, network_of
from .schedulers import limit_of, prediction_of, schedule_of, steps_of


@dataclass(frozen=True)
class DiffusersModel:
    """What FLARE needs from a diffusers pipeline.

    Attributes:
        denoiser: the network, in eval mode; the pipeline's own network is not changed.
        schedule: the noise levels the network was trained on.
        scheduler: the diffusers scheduler that `steps` reads.
        vae: the autoencoder of a latent diffusion model; None in pixel space.
    """

    denoiser: Denoiser
    schedule: Schedule
    scheduler: Any
    vae: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, from the model's configuration: (C, L) or (C, H, W)."""
        config: Any = getattr(self.denoiser.module, "config", None)
        size = getattr(config, "sample_size", None)
        if not size or not isinstance(self.denoiser, Network):
            raise ValueError(
                f"the configuration of {self.denoiser.name} has no sample_size; pass the shape of a sample, "
                "such as shape=(3, 32, 32)."
            )
        sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,) * self.denoiser.axes
        return (self.denoiser.channels, *sizes)

    @property
    def range(self) -> tuple[float, float] | None:
        """The range of the data, which the sampler clips clean samples to; None without clipping."""
        limit = limit_of(self.scheduler)
        if limit is None:
            return None
        return (-1.0, 1.0) if isinstance(limit, Threshold) else (-limit, limit)

    def steps(
        self,
        n: int | None = 50,
        *,
        skipped: int = 0,
        eta: float = 0.0,
        use_clipped: bool = False,
        **options: Any,
    ) -> Steps:
        """The sampler table of n steps of the scheduler.

        Args:
            n: the number of steps; None for those that the scheduler is set to.
            skipped: how many of them to leave out at the start, as pipelines from image to image do.
            eta: for DDIM: 0 is deterministic, 1 adds as much noise as DDPM.
            use_clipped: for DDIM: diffusers' `use_clipped_model_output`.
            **options: passed to the scheduler's `set_timesteps`, for instance `mu` or `timesteps`.
        """
        net = self.denoiser
        learned = net if isinstance(net, Network) and net.learns_variance else None
        own: dict[str, Any] = {"eta": eta, "use_clipped": use_clipped, "network": learned}
        return steps_of(self.scheduler, self.schedule, n, skipped=skipped, **own, **options)

    def with_guidance(self, scale: float, null: Mapping[str, Any] | None = None) -> DiffusersModel:
        """The same model with classifier-free guidance f_w = (1+w)·f_cond − w·f_null, w = guidance_scale − 1.

        Args:
            scale: w.
            null: the conditions of the unconditional branch, such as {"class_labels": 1000}; None if every
                sample has its own, as cond["null"].
        """
        return replace(self, denoiser=guide(self.denoiser, scale, null))

    def pairs(self, images: Tensor | NDArray[Any], n: int = 20_000, seed: int = 0, **options: Any) -> Pairs:
        """Training pairs from clean samples, after checking their channels and range; see `noising.pairs`.

        Args:
            images: clean samples as in training, (N, *shape); for a latent model, `encode(images)`.
            n: the number of pairs.
            seed: of rows, levels and noise.
            **options: passed to `noising.pairs`: weighting, cond, batch_size.
        """
        data = _check_images(images, self.range, "the sampler clips samples to")
        if isinstance(self.denoiser, Network):
            self.denoiser.check_channels(data)
        return pairs(data, self.schedule, n, seed, **options)

    @torch.no_grad()
    def encode(self, images: Tensor | NDArray[Any]) -> Tensor:
        """The latents of images in [−1, 1]: the mode of the encoder's output, scaled for the network."""
        vae = self._autoencoder
        data = _check_images(images, (-1.0, 1.0), "the autoencoder takes images in")
        check_channels(type(vae).__name__, data, vae.config.in_channels, axes=2)
        latents = vae.encode(data.to(vae.device, vae.dtype)).latent_dist.mode()
        factor, shift = self._scale
        return ((latents - shift) / factor).to(data.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        """The images of latents, in [−1, 1] before clamping; `flare.sample(..., observe=model.decode)`."""
        vae = self._autoencoder
        factor, shift = self._scale
        return vae.decode(latents.to(vae.dtype) * factor + shift).sample.to(latents.dtype)

    @cached_property
    def _autoencoder(self) -> Any:
        if self.vae is None:
            raise ValueError(
                "this model has no autoencoder: its samples are images; use them without encode and decode."
            )
        if self.vae.dtype is torch.float16 and self.vae.config.get("force_upcast"):
            return copy.deepcopy(self.vae).float()  # its configuration says that it overflows in float16
        return self.vae

    @cached_property
    def _scale(self) -> tuple[Any, Any]:
        """(a, b) such that a·z + b are the latents of the autoencoder for latents z of the network."""
        vae = self._autoencoder
        config, options = vae.config, {"dtype": vae.dtype, "device": vae.device}
        if config.get("latents_mean") is None:
            return 1 / config.scaling_factor, config.get("shift_factor") or 0.0
        mean, std = (
            torch.tensor(config[key], **options).view(-1, 1, 1) for key in ("latents_mean", "latents_std")
        )
        return std / config.scaling_factor, mean


def _check_images(images: Tensor | NDArray[Any], bounds: tuple[float, float] | None, why: str) -> Tensor:
    """Return the images as a tensor if they are floating point and within the bounds, to 0.01."""
    data = torch.as_tensor(images) if isinstance(images, np.ndarray) else images
    if isinstance(data, Tensor) and not data.is_floating_point():
        raise TypeError(
            f"images must be floating point, scaled as in training, got {data.dtype} of shape "
            f"{tuple(data.shape)}; for values of 0 to 255 use images.float() / 127.5 - 1."
        )
    data = require_samples("images", data)
    low, high = float(data.min()), float(data.max())
    if bounds is not None and not bounds[0] - 0.01 <= low <= high <= bounds[1] + 0.01:
        raise ValueError(
            f"{why} [{bounds[0]:g}, {bounds[1]:g}], but these images of shape {tuple(data.shape)} lie in "
            f"[{low:g}, {high:g}]; scale them as in training, for instance images.float() / 127.5 - 1."
        )
    return data


def from_diffusers(source: Any, scheduler: Any = None) -> DiffusersModel:
    """The denoiser, the schedule and the sampler of a diffusers model.

    >>> model = flare.from_diffusers(pipe)
    >>> flare.sample(model.denoiser, model.steps(5), n=4, shape=(1, 8, 8)).samples.shape
    torch.Size([4, 1, 8, 8])

    Args:
        source: a pipeline, the directory of a saved pipeline, or a pair (model, scheduler). The model is
            a diffusers model (`integrations.networks.NETWORKS`) or any module called as net(x, t, **cond).
        scheduler: replaces the pipeline's own; one of `integrations.schedulers.SCHEDULERS`.
    """
    if isinstance(source, (str, os.PathLike)):
        source = _load(Path(source))
    if isinstance(source, tuple):
        net, own = source
    else:
        net, own = network_of(source), getattr(source, "scheduler", None)
    if not isinstance(net, nn.Module):
        raise TypeError(
            "source must be a pipeline with a unet or a transformer, the directory of a saved one, or a pair "
            f"(model, scheduler), got {type(source).__name__}."
        )
    scheduler = own if scheduler is None else scheduler
    schedule, prediction = schedule_of(scheduler), prediction_of(scheduler)
    foreign = type(net).__module__.split(".")[0] == "diffusers"
    denoiser = Network(net, prediction) if foreign else Denoiser(net, prediction)
    return DiffusersModel(denoiser, schedule, scheduler, getattr(source, "vae", None))


def _load(path: Path) -> Any:
    if not (path / "model_index.json").is_file():
        raise ValueError(
            "a path must be the directory of a saved diffusers pipeline, with a model_index.json, got "
            f"'{path}'; load other pipelines with diffusers, and pass them; for a checkpoint build its "
            "network, fill it with net.load_state_dict, and pass it; for a shipped model pass the denoiser "
            "of flare.bench.load."
        )
    for index in path.rglob("model_index.json"):
        _refuse_code(index)
    import diffusers

    pipeline: Any = diffusers.DiffusionPipeline
    # safetensors only: no file is ever unpickled
    return pipeline.from_pretrained(path, local_files_only=True, use_safetensors=True)


def _refuse_code(index: Path) -> None:
    """Raise if the index of a pipeline names code from outside diffusers and transformers.

    Some versions of diffusers run such code.
    """
    from diffusers import pipelines

    entries = load_json(index)
    kind = entries.get("_class_name") if isinstance(entries, dict) else None
    if not isinstance(kind, (str, list)):
        raise ValueError(f"{index} is not the index of a pipeline; save the pipeline again.")
    foreign = ["_class_name"] if isinstance(kind, list) else []
    for name, value in entries.items():
        # a component is [module, class]; diffusers also splits a text of two letters
        is_component = not name.startswith("_") and isinstance(value, (list, str)) and len(value) == 2
        if is_component and isinstance(module := value[0], str):
            is_known = module in ("diffusers", "transformers") or hasattr(pipelines, module)
            if not is_known or (index.parent / name / f"{module}.py").exists():
                foreign.append(name)
    if foreign:
        raise ValueError(
            f"{index} names code from outside diffusers and transformers as {foreign[0]}, and FLARE does not "
            "run it. If you trust it, load the pipeline with diffusers, and pass the pipeline or (model, "
            "scheduler)."
        )
