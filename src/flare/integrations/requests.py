"""What a pipeline asks of its network: caught at the first call, before anything of it is computed.

A pipeline for text encodes its prompts, draws x_T and lays out the conditions in ways of its own. It does so
here too: it is started as ever, and stopped where it calls the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..checks import positive_int
from ..conditions import at, has_rows
from .networks import NETWORKS

# options that change the steps in ways that the rows of a sampler do not follow
REFUSED = (
    "callback", "callback_on_step_end", "cross_attention_kwargs", "denoising_end", "guidance_rescale",
    "joint_attention_kwargs", "sigmas", "skip_guidance_layers", "timesteps",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What a pipeline asks for.

    Attributes:
        start: x_T as the network sees it, (n, *shape).
        cond: the conditions, with those of the unconditional branch as `null` if there is guidance.
        guidance: w of f_w = (1+w)·f_cond − w·f_null; 0 without.
    """

    start: Tensor
    cond: dict[str, Any]
    guidance: float


def prompt_conditions(
    pipe: Any, prompts: Sequence[str], batch_size: int = 32, **options: Any
) -> dict[str, Any]:
    """The conditions that a pipeline for text makes of prompts, one row each: for training pairs.

    >>> cond = flare.prompt_conditions(pipe, captions)                                       # doctest: +SKIP
    >>> pairs = flow.pairs(flow.encode(images), n=2000, cond=cond)                           # doctest: +SKIP

    Args:
        pipe: a StableDiffusionPipeline, StableDiffusionXLPipeline, StableDiffusion3Pipeline or one like them.
        prompts: such as the captions of the training images.
        batch_size: how many go through the text encoders at once.
        **options: of the pipeline, such as height and width.
    """
    if isinstance(prompts, str) or not prompts:
        raise ValueError(f"prompts must be a list of at least one text, got {prompts!r}.")
    options = {"guidance_scale": 1.0, "num_inference_steps": 1, **options}
    starts = range(0, len(prompts), positive_int("batch_size", batch_size))
    parts = [caught(pipe, prompt=list(prompts[k : k + batch_size]), **options).cond for k in starts]
    return tree_map(lambda *values: torch.cat(values) if has_rows(values[0]) else values[0], *parts)


def caught(pipe: Any, **options: Any) -> Request:
    """The first call of a pipeline's network.

    Args:
        pipe: the pipeline; it is left as it was.
        **options: of the pipeline.
    """
    if refused := [name for name in REFUSED if options.get(name)]:
        raise ValueError(
            f"{refused[0]} is not supported: the uncertainty could not follow it. Leave it out, or use "
            "flare.sample with flare.from_diffusers(pipe)."
        )
    network: nn.Module = getattr(pipe, "unet", None) or pipe.transformer
    handle = network.register_forward_pre_hook(_stop, with_kwargs=True)
    shown = getattr(pipe, "_progress_bar_config", {})
    pipe.set_progress_bar_config(disable=True)
    try:
        pipe(**options)
    except _Call as call:
        given = dict(inspect.signature(network.forward).bind(*call.inputs, **call.keywords).arguments)
    finally:
        handle.remove()
        pipe.set_progress_bar_config(**shown)
    x = given.pop(NETWORKS[type(network).__name__][0])
    cond = {k: v for k, v in given.items() if v is not None and k not in ("timestep", "return_dict")}
    if not pipe.do_classifier_free_guidance:
        return Request(x, cond, 0.0)
    n = len(x) // 2  # both branches in one batch, first that without the prompt
    null = at(cond, slice(0, n))
    return Request(x[n:], {**at(cond, slice(n, None)), "null": null}, pipe.guidance_scale - 1)


class _Call(BaseException):
    """The call of a network, thrown out of the pipeline that makes it."""

    def __init__(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.keywords = inputs, keywords


def _stop(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    raise _Call(inputs, keywords)
