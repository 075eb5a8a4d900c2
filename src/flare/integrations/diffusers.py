"""`flare.from_diffusers`: a pipeline of diffusers as a denoiser, a schedule and the rows of its sampler."""

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
from ..diffusion.clipping import Threshold
from ..diffusion.noising import Pairs, pairs
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser
from .guidance import Guided, guide
from .networks import Network, check_channels, network_of
from .schedulers import limit_of, prediction_of, schedule_of, steps_of


@dataclass(frozen=True)
class DiffusersModel:
    """What FLARE needs of a pipeline.

    Attributes:
        denoiser: the network, in eval mode; the pipeline's own is not changed.
        schedule: the noise levels that it was trained on.
        scheduler: of diffusers, which `steps` reads.
        vae: of a latent diffusion model; None in pixel space.
    """

    denoiser: Denoiser
    schedule: Schedule
    scheduler: Any
    vae: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as the model's configuration has it: (C, L) or (C, H, W)."""
        config: Any = getattr(self.denoiser.module, "config", None)
        size = getattr(config, "sample_size", None)
        if not size or not isinstance(self._network, Network):
            raise ValueError(
                f"{self.denoiser.name} does not say how large its samples are; give their shape."
            )
        sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,) * self._network.axes
        return (self._network.channels, *sizes)

    @property
    def range(self) -> tuple[float, float] | None:
        """Where the sampler keeps clean samples, so where the training data was; None if it does not."""
        limit = limit_of(self.scheduler)
        if limit is None:
            return None
        return (-1.0, 1.0) if isinstance(limit, Threshold) else (-limit, limit)

    @property
    def _network(self) -> Denoiser:
        return self.denoiser.inner if isinstance(self.denoiser, Guided) else self.denoiser

    def steps(self, n: int = 50, *, eta: float = 0.0, use_clipped: bool = False, **options: Any) -> Steps:
        """The rows of n steps, the same as the scheduler's.

        Args:
            n: the number of steps.
            eta: of DDIM: 0 is deterministic, 1 has DDPM's noise.
            use_clipped: of DDIM: diffusers' `use_clipped_model_output`.
            **options: of the scheduler's `set_timesteps`, for instance `mu` or `timesteps`.
        """
        net = self._network
        learned = net if isinstance(net, Network) and net.learns_variance else None
        return steps_of(
            self.scheduler, self.schedule, n, eta=eta, use_clipped=use_clipped, network=learned, **options
        )

    def with_guidance(self, scale: float, null: Mapping[str, Any] | None = None) -> DiffusersModel:
        """The same with classifier-free guidance f_w = (1+w)·f_cond − w·f_null, w = guidance_scale − 1.

        Args:
            scale: w.
            null: the conditions of the unconditional branch, such as {"class_labels": 1000}; None if every
                sample has its own, as cond["null"].
        """
        return replace(self, denoiser=guide(self.denoiser, scale, null))

    def pairs(self, images: Tensor | NDArray[Any], n: int = 20_000, seed: int = 0, **options: Any) -> Pairs:
        """Training pairs from clean samples, checked against what the model takes; see `noising.pairs`.

        Args:
            images: as the network was trained on them, (N, *shape): for a latent model, `encode` of images.
            n: how many pairs.
            seed: of rows, levels and noise.
            **options: of `noising.pairs`: weighting, cond, batch_size.
        """
        net, data = self._network, _check_images(images, self.range, "the sampler keeps its samples")
        if isinstance(net, Network):
            net.check_channels(data)
        return pairs(data, self.schedule, n, seed, **options)

    @torch.no_grad()
    def encode(self, images: Tensor | NDArray[Any]) -> Tensor:
        """The latents of images in [−1, 1]: the mode of the encoder's answer, as the network sees it."""
        vae = self._autoencoder
        data = _check_images(images, (-1.0, 1.0), "the autoencoder takes images")
        check_channels(type(vae).__name__, data, vae.config.in_channels, axes=2)
        latents = vae.encode(data.to(vae.device, vae.dtype)).latent_dist.mode()
        factor, shift = self._scale
        return ((latents - shift) / factor).to(data.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        """The images of latents, in [−1, 1] before clamping; `flare.sample(..., observe=flow.decode)`."""
        vae = self._autoencoder
        factor, shift = self._scale
        return vae.decode(latents.to(vae.dtype) * factor + shift).sample.to(latents.dtype)

    @cached_property
    def _autoencoder(self) -> Any:
        if self.vae is None:
            raise ValueError("this model has no autoencoder: its samples are the images.")
        if self.vae.dtype is torch.float16 and self.vae.config.get("force_upcast"):
            return copy.deepcopy(self.vae).float()  # it says that it overflows in float16
        return self.vae

    @cached_property
    def _scale(self) -> tuple[Any, Any]:
        """(a, b) with a·z + b the latents of the autoencoder, z those of the network."""
        vae = self._autoencoder
        config, options = vae.config, {"dtype": vae.dtype, "device": vae.device}
        if config.get("latents_mean") is None:
            return 1 / config.scaling_factor, config.get("shift_factor") or 0.0
        mean, std = (
            torch.tensor(config[key], **options).view(-1, 1, 1) for key in ("latents_mean", "latents_std")
        )
        return std / config.scaling_factor, mean


def _check_images(images: Tensor | NDArray[Any], bounds: tuple[float, float] | None, who: str) -> Tensor:
    """Return the images as a tensor if they are floating point and, to a hundredth, within their bounds."""
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
            f"{who} in [{bounds[0]:g}, {bounds[1]:g}], and these images of shape {tuple(data.shape)} lie in "
            f"[{low:g}, {high:g}]; scale them as in training, for instance images.float() / 127.5 - 1."
        )
    return data


def from_diffusers(source: Any, scheduler: Any = None) -> DiffusersModel:
    """The denoiser, the schedule and the sampler of a model of diffusers.

    >>> pipe = DDPMPipeline.from_pretrained(path)                   # doctest: +SKIP
    >>> flow = flare.from_diffusers(pipe)                           # doctest: +SKIP
    >>> flare.sample(flow.denoiser, flow.steps(50), n=4, shape=(3, 32, 32))  # doctest: +SKIP

    Args:
        source: a pipeline, the directory that one was saved to, or a pair (model, scheduler). The model is
            one of diffusers' (`integrations.networks.NETWORKS`) or any module called net(x, t, **cond).
        scheduler: instead of the pipeline's own, one of `integrations.schedulers.SCHEDULERS`.
    """
    if isinstance(source, (str, os.PathLike)):
        source = _load(Path(source))
    if isinstance(source, tuple):
        model, own = source
    else:
        model, own = network_of(source), getattr(source, "scheduler", None)
    if not isinstance(model, nn.Module):
        raise TypeError(
            "source must be a pipeline with a unet or a transformer, the directory of a saved one, or a pair "
            f"(model, scheduler), got {type(source).__name__}."
        )
    scheduler = own if scheduler is None else scheduler
    schedule, prediction = schedule_of(scheduler), prediction_of(scheduler)
    foreign = type(model).__module__.split(".")[0] == "diffusers"
    denoiser = Network(model, prediction) if foreign else Denoiser(model, prediction)
    return DiffusersModel(denoiser, schedule, scheduler, getattr(source, "vae", None))


def _load(path: Path) -> Any:
    import diffusers

    if not (path / "model_index.json").is_file():
        raise ValueError(
            f"{path} is not a directory that a pipeline was saved to (it has no model_index.json); load a "
            "model from elsewhere with diffusers, and give the pipeline or (model, scheduler)."
        )
    pipeline: Any = diffusers.DiffusionPipeline
    # no file is ever unpickled
    return pipeline.from_pretrained(path, local_files_only=True, use_safetensors=True)
