"""The inputs that a text pipeline gives its network, intercepted at the first call.

Each text pipeline encodes prompts, draws x_T and lays out the conditions in its own way. Instead of repeating
that, we start the pipeline and stop it when it first calls the network.
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

# options that change the steps in ways that a sampler table cannot represent
REFUSED = (
    "callback", "callback_on_step_end", "cross_attention_kwargs", "denoising_end", "guidance_rescale",
    "joint_attention_kwargs", "sigmas", "skip_guidance_layers", "timesteps",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The inputs of a pipeline's first network call.

    Attributes:
        start: x_T as the network sees it, (n, *shape).
        cond: the conditions; with guidance, those of the unconditional branch are in `null`.
        guidance: w of f_w = (1+w)·f_cond − w·f_null; 0 without guidance.
    """

    start: Tensor
    cond: dict[str, Any]
    guidance: float


def prompt_conditions(
    pipe: Any, prompts: Sequence[str], batch_size: int = 32, **options: Any
) -> dict[str, Any]:
    """The conditions that a text pipeline makes from prompts, one row per prompt, for training pairs.

    >>> captions = ["a cat"] * len(text_images)
    >>> cond = flare.prompt_conditions(text_pipe, captions)
    >>> model = flare.from_diffusers(text_pipe)
    >>> pairs = model.pairs(model.encode(text_images), n=20, cond=cond)

    Args:
        pipe: a StableDiffusionPipeline, StableDiffusionXLPipeline or StableDiffusion3Pipeline.
        prompts: such as the captions of the training images.
        batch_size: the number of prompts that are encoded at once.
        **options: passed to the pipeline, such as height and width; lists, such as prompt_2, have one value
            per prompt.
    """
    if isinstance(prompts, str) or len(prompts) == 0:
        raise ValueError(
            f"prompts must be a list of at least one text, got {prompts!r}; give a list of captions."
        )
    fixed = {"guidance_scale": 1.0, "num_inference_steps": 1, "num_images_per_prompt": 1}
    if taken := [name for name in options if name in fixed]:
        raise ValueError(
            f"{taken[0]} is not for conditions: training pairs have one row per prompt and no guidance; "
            "leave it out."
        )
    each = {"prompt": list(prompts)} | {k: v for k, v in options.items() if isinstance(v, list)}
    if wrong := [name for name, values in each.items() if len(values) != len(prompts)]:
        raise ValueError(
            f"{wrong[0]} has {len(each[wrong[0]])} values for {len(prompts)} prompts; give one per prompt."
        )
    parts = []
    for first in range(0, len(prompts), require_positive_int("batch_size", batch_size)):
        some = {name: values[first : first + batch_size] for name, values in each.items()}
        noise = torch.Generator().manual_seed(0)  # x_T is discarded; no global generator is advanced
        parts.append(intercept(pipe, generator=noise, **{**options, **fixed, **some}).cond)
    return tree_map(lambda *values: torch.cat(values) if has_rows(values[0]) else values[0], *parts)


def intercept(pipe: Any, **options: Any) -> Request:
    """Run a pipeline up to the first call of its network and return the inputs of that call.

    Args:
        pipe: the pipeline; only the steps of its scheduler are changed.
        **options: passed to the pipeline.
    """
    network = network_of(pipe)
    if network is None or type(network).__name__ not in NETWORKS:
        raise ValueError(
            f"the network of {type(pipe).__name__} is not supported; it must be one of {', '.join(NETWORKS)}."
        )
    if refused := [name for name in REFUSED if _is_set(options.get(name))]:
        raise ValueError(
            f"{refused[0]} is not supported: it changes the steps of the sampler. Leave it out, or use "
            "flare.sample with flare.from_diffusers(pipe)."
        )
    handle = network.register_forward_pre_hook(_stop, with_kwargs=True)
    shown = getattr(pipe, "_progress_bar_config", {})
    pipe.set_progress_bar_config(disable=True)
    try:
        pipe(**options)
    except _InterceptedCall as call:
        given = dict(inspect.signature(network.forward).bind(*call.inputs, **call.keywords).arguments)
    else:
        raise ValueError(f"{type(pipe).__name__} did not call its network; give at least one step.")
    finally:
        handle.remove()
        pipe.set_progress_bar_config(**shown)
        pipe.maybe_free_model_hooks()
    x = given.pop(NETWORKS[type(network).__name__][0])
    cond = {k: v for k, v in given.items() if v is not None and k not in ("timestep", "return_dict")}
    if not pipe.do_classifier_free_guidance:
        return Request(x, cond, 0.0)
    n = len(x) // 2  # both branches in one batch, the unconditional one first
    null = take_rows(cond, slice(0, n))
    return Request(x[n:], {**take_rows(cond, slice(n, None)), "null": null}, pipe.guidance_scale - 1)


def _is_set(option: Any) -> bool:
    """Whether an option has an effect: neither None nor the number 0."""
    return option is not None and not (isinstance(option, (int, float)) and option == 0)


class _InterceptedCall(BaseException):  # BaseException: a pipeline may catch Exception
    """Carries the inputs of a network call out of the pipeline."""

    def __init__(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.keywords = inputs, keywords


def _stop(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    raise _InterceptedCall(inputs, keywords)
