"""The inputs that a pipeline gives its network, intercepted at the first call.

Each pipeline draws x_T, encodes prompts and lays out the conditions in its own way. Instead of repeating
that, we start the pipeline and stop it when it first calls the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..core.conditions import has_rows, take_rows
from ..core.validation import one_of, require_positive_int
from .diffusers_networks import NETWORKS, PACKED, PATCH, network_of, unpack

# options that change the steps in ways that a sampler table cannot represent
REFUSED = (
    "callback", "callback_on_step_end", "cross_attention_kwargs", "denoising_end", "denoising_start",
    "guidance_rescale", "joint_attention_kwargs", "padding_mask_crop", "sigmas", "skip_guidance_layers",
    "timesteps", "true_cfg_scale",
)  # fmt: skip


class FirstCall(NamedTuple):
    """The inputs of a pipeline's first network call.

    Attributes:
        start: The first state as the network sees it, (n, *shape).
        cond: The conditions; with guidance, those of the unconditional branch are in `null`.
        guidance: W of f_w = (1+w)·f_cond − w·f_null; 0 without guidance.
        skipped: The number of steps of the scheduler before this state, which may be a noised image.
    """

    start: Tensor
    cond: dict[str, Any]
    guidance: float
    skipped: int


def prompt_conditions(
    pipe: Any, prompts: Sequence[str], batch_size: int = 32, **options: Any
) -> dict[str, Any]:
    """Encode prompts as conditions of a text pipeline, one row per prompt, for training pairs.

    >>> captions = ["a cat"] * len(text_images)
    >>> cond = flare.prompt_conditions(text_pipe, captions)
    >>> model = flare.from_diffusers(text_pipe)
    >>> pairs = model.pairs(model.encode(text_images), n=20, cond=cond)

    Args:
        pipe: A text-to-image pipeline; see `FlarePipeline`.
        prompts: Texts such as the captions of the training images.
        batch_size: The number of prompts that are encoded at once.
        **options: Options of the pipeline, such as height and width. Lists, such as prompt_2, have one value
            per prompt.
    """
    if isinstance(prompts, str) or len(prompts) == 0:
        raise ValueError(
            f"prompts must be a list of at least one text, got {prompts!r}; give a list of captions."
        )
    fixed: dict[str, Any] = {"num_inference_steps": 1, "num_images_per_prompt": 1}
    if not embeds_guidance(pipe):
        fixed["guidance_scale"] = 1.0
    if "image" in parameters_of(pipe):
        raise ValueError(
            f"{type(pipe).__name__} starts from an image; make the conditions with the text-to-image "
            "pipeline that has the same parts, such as AutoPipelineForText2Image.from_pipe(pipe)."
        )
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
        cond = intercept(pipe, generator=noise, **{**options, **fixed, **some}).cond
        cond.pop("concat", None)  # noise, if the network takes more channels than a sample has
        parts.append(cond)
    return tree_map(lambda *values: torch.cat(values) if has_rows(values[0]) else values[0], *parts)


def intercept(pipe: Any, **options: Any) -> FirstCall:
    """Run a pipeline up to the first call of its network and return the inputs of that call.

    Args:
        pipe: The pipeline. Only the steps of its scheduler are changed.
        **options: Options of the pipeline.
    """
    network = network_of(pipe)
    if network is None or type(network).__name__ not in NETWORKS:
        raise ValueError(
            f"the network of {type(pipe).__name__} is not supported; it must be one of {', '.join(NETWORKS)}."
        )
    for name in options:  # some pipelines ignore options that they do not know
        one_of(f"option of {type(pipe).__name__}", name, parameters_of(pipe))
    if refused := [name for name in REFUSED if _is_set(pipe, options, name)]:
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
    except RuntimeError as error:
        steps, strength = (option_of(pipe, options, name, 1) for name in ("num_inference_steps", "strength"))
        if steps * strength < 1:
            raise ValueError(
                f"strength={strength} leaves none of {steps} steps; give more strength, or more steps."
            ) from error
        raise
    else:
        raise ValueError(f"{type(pipe).__name__} did not call its network; give at least one step.")
    finally:
        handle.remove()
        pipe.set_progress_bar_config(**shown)
        pipe.maybe_free_model_hooks()
    x, cond = _split(network, given)
    skipped = _count_skipped(pipe, given["timestep"])
    weight = _guidance_weight(pipe, options)
    if not weight:
        return FirstCall(x, cond, 0.0, skipped)
    n = len(x) // 2  # both branches are in one batch
    null, kept = take_rows(cond, slice(0, n)), take_rows(cond, slice(n, None))
    if puts_condition_first(pipe):
        null, kept = kept, null
    return FirstCall(x[n:], {**kept, "null": null}, weight, skipped)


def parameters_of(pipe: Any) -> Mapping[str, inspect.Parameter]:
    """The named arguments of a pipeline's call."""
    parameters = inspect.signature(pipe.__call__).parameters
    return {name: each for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}


def embeds_guidance(pipe: Any) -> bool:
    """Whether the guidance scale is an input of the network, as in Flux."""
    return type(network_of(pipe)).__name__ in PACKED


def puts_condition_first(pipe: Any) -> bool:
    """Whether the first half of a batch with guidance is the conditional branch, as with class labels."""
    return "class_labels" in parameters_of(pipe)


def option_of(pipe: Any, options: dict[str, Any], name: str, missing: Any) -> Any:
    """An option of a call, or its default; `missing` if the pipeline does not have it."""
    parameter = parameters_of(pipe).get(name)
    return options.get(name, missing if parameter is None else parameter.default)


def _split(network: nn.Module, given: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The state of a call and its conditions; channels besides those of a sample become `concat`."""
    name, config = type(network).__name__, cast("Any", network).config
    x = given[NETWORKS[name][0]]
    taken = {NETWORKS[name][0], "timestep", "return_dict"}
    if name in PACKED:
        rows, columns = (int(given["img_ids"][:, axis].max()) + 1 for axis in (1, 2))
        x = unpack(x, PATCH * rows, PATCH * columns)
        taken |= {"img_ids", "txt_ids"}
    taken |= {k for k, v in given.items() if v is None or (isinstance(v, Mapping) and not v)}
    cond = {k: v for k, v in given.items() if k not in taken}
    if x.ndim == 4 and config.out_channels is not None and x.shape[1] > config.out_channels:
        x, cond["concat"] = x[:, : config.out_channels], x[:, config.out_channels :]
    return x, cond


def _guidance_weight(pipe: Any, options: dict[str, Any]) -> float:
    """w of classifier-free guidance; 0 without."""
    if embeds_guidance(pipe):
        return 0.0
    if hasattr(pipe, "do_classifier_free_guidance"):
        return pipe.guidance_scale - 1 if pipe.do_classifier_free_guidance else 0.0
    return max(0.0, option_of(pipe, options, "guidance_scale", 1.0) - 1)  # PixArt and class labels


def _count_skipped(pipe: Any, time: Any) -> int:
    """The number of steps of the scheduler before its first call."""
    if "image" not in parameters_of(pipe):
        return 0
    scheduler, order = pipe.scheduler, getattr(pipe.scheduler, "order", 1)
    if getattr(scheduler, "begin_index", None) is not None:
        return int(scheduler.begin_index) // order
    # schedulers without a begin have distinct times
    return int(scheduler.timesteps.tolist().index(torch.as_tensor(time).flatten()[0].item()))


def _is_set(pipe: Any, options: dict[str, Any], name: str) -> bool:
    """Whether an option has an effect: it is neither None nor 0, nor its default."""
    value, neutral = options.get(name), (0, option_of(pipe, {}, name, 0))
    return value is not None and not (isinstance(value, (int, float)) and value in neutral)


class _InterceptedCall(BaseException):  # BaseException: a pipeline may catch Exception
    """Carries the inputs of a network call out of the pipeline."""

    def __init__(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.keywords = inputs, keywords


def _stop(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    raise _InterceptedCall(inputs, keywords)
