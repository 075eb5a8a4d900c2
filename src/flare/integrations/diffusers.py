"""`flare.from_diffusers`: a diffusers pipeline as a `flare.Model`."""

from __future__ import annotations

import copy
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.validation import require_samples
from ..diffusion.steps import Threshold
from ..model import Model, check_range
from ..network.denoiser import Denoiser
from ..storage.checkpoint import load_json
from .diffusers_networks import Network, check_channels, network_of
from .schedulers import limit_of, prediction_of, schedule_of, steps_of


def from_diffusers(source: Any, scheduler: Any = None) -> Model:
    """The model of a diffusers pipeline: its network, noise levels, sampler and autoencoder.

    The model samples with the pipeline's scheduler: `model.steps(n, skipped=0, eta=0.0, use_clipped=False)`
    returns a table of n steps, or of the current timesteps of the scheduler if n is None. Other options, such
    as `mu` or `timesteps`, are passed to `set_timesteps`. The pipeline is not changed.

    >>> model = flare.from_diffusers(pipe)
    >>> flare.sample(model.denoiser, model.steps(5), n=4, shape=model.shape).samples.shape
    torch.Size([4, 1, 8, 8])

    Args:
        source: A pipeline, the directory of a saved pipeline, or a pair (model, scheduler). The model is
            a diffusers model (`integrations.diffusers_networks.NETWORKS`) or any module called as
            net(x, t, **cond).
        scheduler: A scheduler that replaces the pipeline's; one of `integrations.schedulers.SCHEDULERS`.
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
    limit, vae = limit_of(scheduler), getattr(source, "vae", None)
    return Model(
        denoiser,
        schedule,
        sampler=partial(steps_of, scheduler, schedule, denoiser),
        codec=None if vae is None else Autoencoder(vae),
        shape=denoiser.sample_shape if isinstance(denoiser, Network) else None,
        clip=1.0 if isinstance(limit, Threshold) else limit,
    )


class Autoencoder:
    """The autoencoder of a latent diffusion model, between images in [−1, 1] and the latents of its network.

    Args:
        vae: An autoencoder of diffusers. It is not changed.
    """

    def __init__(self, vae: Any) -> None:
        self._given = vae

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """The latents of images in [−1, 1]: the mode of the encoder's output, scaled for the network."""
        images = require_samples("images", images)
        check_range("the autoencoder takes images in", images, 1.0)
        check_channels(type(self._vae).__name__, images, self._vae.config.in_channels, axes=2)
        latents = self._vae.encode(images.to(self._vae.device, self._vae.dtype)).latent_dist.mode()
        factor, shift = self._scale
        return ((latents - shift) / factor).to(images.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        """The images of latents, in [−1, 1] before clamping; `flare.sample(..., observe=model.decode)`."""
        factor, shift = self._scale
        return self._vae.decode(latents.to(self._vae.dtype) * factor + shift).sample.to(latents.dtype)

    @cached_property
    def _vae(self) -> Any:
        if self._given.dtype is torch.float16 and self._given.config.get("force_upcast"):
            return copy.deepcopy(self._given).float()  # its configuration says that it overflows in float16
        return self._given

    @cached_property
    def _scale(self) -> tuple[Any, Any]:
        """(a, b) such that a·z + b are the latents of the autoencoder for latents z of the network."""
        vae = self._vae
        config, options = vae.config, {"dtype": vae.dtype, "device": vae.device}
        if config.get("latents_mean") is None:
            return 1 / config.scaling_factor, config.get("shift_factor") or 0.0
        mean, std = (
            torch.tensor(config[key], **options).view(-1, 1, 1) for key in ("latents_mean", "latents_std")
        )
        return std / config.scaling_factor, mean


def _load(path: Path) -> Any:
    if not (path / "model_index.json").is_file():
        found = "which has none" if path.exists() else "which does not exist"
        raise ValueError(
            "a path must be the directory of a saved diffusers pipeline, with a model_index.json, got "
            f"'{path}', {found}; load other pipelines with diffusers, and pass them; for a checkpoint build "
            "its network, fill it with net.load_state_dict, and pass it; for a shipped model pass "
            "flare.bench.load(name)."
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
