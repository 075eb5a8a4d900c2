"""`flare.from_diffusers`: a pipeline of diffusers as a denoiser, a schedule and the rows of its sampler."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..denoiser import Denoiser
from ..samplers import Steps
from ..schedules import Schedule
from .networks import Network
from .schedulers import prediction_of, schedule_of, steps_of


@dataclass(frozen=True)
class Flow:
    """What FLARE needs of a pipeline.

    Attributes:
        denoiser: the network, in eval mode; the pipeline's own is not changed.
        schedule: the noise levels that it was trained on.
        scheduler: of diffusers, which `steps` reads.
    """

    denoiser: Denoiser
    schedule: Schedule
    scheduler: Any

    def steps(self, n: int = 50, *, eta: float = 0.0, use_clipped: bool = False, **options: Any) -> Steps:
        """The rows of n steps, the same as the scheduler's.

        Args:
            n: the number of steps.
            eta: of DDIM: 0 is deterministic, 1 has DDPM's noise.
            use_clipped: of DDIM: diffusers' `use_clipped_model_output`.
            **options: of the scheduler's `set_timesteps`, for instance `mu` or `timesteps`.
        """
        net = self.denoiser
        learned = net if isinstance(net, Network) and net.learns_variance else None
        return steps_of(
            self.scheduler, self.schedule, n, eta=eta, use_clipped=use_clipped, network=learned, **options
        )


def from_diffusers(source: Any, scheduler: Any = None) -> Flow:
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
        model = getattr(source, "unet", None) or getattr(source, "transformer", None)
        own = getattr(source, "scheduler", None)
    if not isinstance(model, nn.Module):
        raise TypeError(
            "source must be a pipeline with a unet or a transformer, the directory of a saved one, or a pair "
            f"(model, scheduler), got {type(source).__name__}."
        )
    scheduler = own if scheduler is None else scheduler
    schedule, prediction = schedule_of(scheduler), prediction_of(scheduler)
    foreign = type(model).__module__.split(".")[0] == "diffusers"
    denoiser = Network(model, prediction) if foreign else Denoiser(model, prediction)
    return Flow(denoiser, schedule, scheduler)


def _load(path: Path) -> Any:
    import diffusers

    if not (path / "model_index.json").is_file():
        raise ValueError(
            f"{path} is not a directory that a pipeline was saved to (it has no model_index.json); load a "
            "model from elsewhere with diffusers, and give the pipeline or (model, scheduler)."
        )
    pipeline: Any = diffusers.DiffusionPipeline
    return pipeline.from_pretrained(path, local_files_only=True)
