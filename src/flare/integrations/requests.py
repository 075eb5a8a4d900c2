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

from ..core.conditions import has_rows, take_rows
from ..core.validation import require_positive_int
from .networks import NETWORKS, network_of

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
        pipe: a StableDiffusionPipeline, StableDiffusionXLPipeline or StableDiffusion3Pipeline.
        prompts: such as the captions of the training images.
        batch_size: how many go through the text encoders at once.
        **options: of the pipeline, such as height and width; lists, as prompt_2, are one value a prompt.
    """
    if isinstance(prompts, str) or len(prompts) == 0:
        raise ValueError(f"prompts must be a list of at least one text, got {prompts!r}.")
    fixed = {"guidance_scale": 1.0, "num_inference_steps": 1, "num_images_per_prompt": 1}
    if taken := [name for name in options if name in fixed]:
        raise ValueError(f"{taken[0]} is not for conditions: training pairs have one row a prompt, unguided.")
    each = {"prompt": list(prompts)} | {k: v for k, v in options.items() if isinstance(v, list)}
    if wrong := [name for name, values in each.items() if len(values) != len(prompts)]:
        raise ValueError(f"{wrong[0]} has {len(each[wrong[0]])} values for {len(prompts)} prompts.")
    parts = []
    for first in range(0, len(prompts), require_positive_int("batch_size", batch_size)):
        some = {name: values[first : first + batch_size] for name, values in each.items()}
        noise = torch.Generator().manual_seed(0)  # x_T is not wanted, nor the state of anybody's generator
        parts.append(caught(pipe, generator=noise, **{**options, **fixed, **some}).cond)
    return tree_map(lambda *values: torch.cat(values) if has_rows(values[0]) else values[0], *parts)


def caught(pipe: Any, **options: Any) -> Request:
    """The first call of a pipeline's network.

    Args:
        pipe: the pipeline; nothing but the steps of its scheduler is changed.
        **options: of the pipeline.
    """
    network = network_of(pipe)
    if network is None or type(network).__name__ not in NETWORKS:
        raise ValueError(
            f"the network of {type(pipe).__name__} is not supported; it must be one of {', '.join(NETWORKS)}."
        )
    if refused := [name for name in REFUSED if _given(options.get(name))]:
        raise ValueError(
            f"{refused[0]} is not supported: the uncertainty could not follow it. Leave it out, or use "
            "flare.sample with flare.from_diffusers(pipe)."
        )
    handle = network.register_forward_pre_hook(_stop, with_kwargs=True)
    shown = getattr(pipe, "_progress_bar_config", {})
    pipe.set_progress_bar_config(disable=True)
    try:
        pipe(**options)
    except _Call as call:
        given = dict(inspect.signature(network.forward).bind(*call.inputs, **call.keywords).arguments)
    else:
        raise ValueError(f"{type(pipe).__name__} did not call its network: give at least one step.")
    finally:
        handle.remove()
        pipe.set_progress_bar_config(**shown)
        pipe.maybe_free_model_hooks()
    x = given.pop(NETWORKS[type(network).__name__][0])
    cond = {k: v for k, v in given.items() if v is not None and k not in ("timestep", "return_dict")}
    if not pipe.do_classifier_free_guidance:
        return Request(x, cond, 0.0)
    n = len(x) // 2  # both branches in one batch, first that without the prompt
    null = take_rows(cond, slice(0, n))
    return Request(x[n:], {**take_rows(cond, slice(n, None)), "null": null}, pipe.guidance_scale - 1)


def _given(option: Any) -> bool:
    """Whether an option says anything: not None, and no number that is zero."""
    return option is not None and not (isinstance(option, (int, float)) and option == 0)


class _Call(BaseException):
    """The call of a network, thrown out of the pipeline that makes it."""

    def __init__(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.keywords = inputs, keywords


def _stop(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    raise _Call(inputs, keywords)
