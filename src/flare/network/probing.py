"""A trial call of a network on a few samples; a failure is explained in terms of its arguments and data."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..core.conditions import Cond, take_rows
from ..core.memory import is_out_of_memory
from .denoiser import Denoiser

# errors of a matrix product or a convolution about the shape of its input
_WIDTH = re.compile(r"mat1 and mat2 shapes|size mismatch|weight of size .*expected input|input to conv")


def call(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
    """f(x, t) of a network on its first, checked call.

    If the call fails, other networks, arguments and shapes of the data are tried to give better advice.
    Further calls replace all parameters by copies and run single rows. Random outputs, parameters that cannot
    be replaced, and rows that depend on each other raise errors. Nothing is differentiated.

    Args:
        denoiser: The network.
        x: A few samples, (B, *shape).
        t: The times, (B,).
        cond: Keyword arguments of the network.

    Raises:
        ValueError: the call failed or its output is wrong; the message says what to do.
    """
    values = (value for value in tree_leaves((x, t, dict(cond or {}))) if isinstance(value, Tensor))
    inputs = [value for value in values if not value.is_inference()]
    versions = [value._version for value in inputs]
    copies = {name: value.detach().clone() for name, value in denoiser.params.items()}
    try:
        out = denoiser(x, t, cond)
        with torch.no_grad(), _Escapes(denoiser.params) as escapes:
            again = denoiser.call(copies, x, t, cond)
    except Exception as error:  # user code may raise anything
        if is_out_of_memory(error):
            raise
        raise explain_call_failure(denoiser, error, x, t, cond) from error
    if versions != [value._version for value in inputs]:
        raise ValueError(
            f"{denoiser.name} writes to its inputs in place, which would change the samples themselves. Let "
            "it write to a copy, as in x = x.clone()."
        )
    if _differ(denoiser, out, again):
        raise ValueError(
            f"{denoiser.name} must return the same output for the same input, and two calls differ: it draws "
            "random numbers. Turn them off in eval mode, as in F.dropout(x, training=self.training), or pass "
            "them as cond={...}."
        )
    for row in {0, len(x) // 2, len(x) - 1} if len(x) > 1 else ():
        one = slice(row, row + 1)
        if _differ(denoiser, out[one], denoiser(x[one], t[one], take_rows(cond, one))):
            raise ValueError(
                f"{denoiser.name} must return the same output for a sample in any batch, and row {row} of "
                f"{len(x)} differs from the same row alone: it mixes or reorders samples."
            )
    if escapes.names:
        raise ValueError(
            f"{denoiser.name} reaches {', '.join(sorted(escapes.names))} past the module that owns it, "
            "through a list, a function or a hook that keeps a reference: its uncertainty would count as 0. "
            "Call the module in forward, and keep tensors in an nn.ParameterList."
        )
    return out


def _differ(denoiser: Denoiser, out: Tensor, other: Tensor) -> bool:
    """Whether two outputs differ by more than rounding, which some kernels do not repeat."""
    return bool((out - other).abs().max() > torch.finfo(denoiser.dtype).eps ** 0.5 * out.abs().max())


class _Escapes(TorchFunctionMode):
    """Inside, records the parameters that a call uses although copies replace all of them.

    Args:
        params: The parameters of the network by name.

    Attributes:
        names: The names of the parameters that were used.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._by_memory = {_memory(value): name for name, value in params.items() if value.numel()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and look at its arguments if it computes with them."""
        out = func(*args, **(kwargs or {}))
        if any(isinstance(value, Tensor) for value in tree_leaves(out)):
            used = (_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor))
            self.names.update(self._by_memory[memory] for memory in used if memory in self._by_memory)
        return out


def _memory(value: Tensor) -> int:
    """The address of the storage that a tensor shares with all of its views; -1 if it has none."""
    try:
        return value.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those of torch.func
        return -1


def explain_call_failure(
    denoiser: Denoiser, error: Exception, x: Tensor, t: Tensor, cond: Cond | None = None
) -> ValueError:
    """An error that explains the network's error at (x, t, cond), with advice."""
    name, given = denoiser.name, dict(cond or {})
    received = f"x of shape {tuple(x.shape)} and t of shape {tuple(t.shape)} ({t.dtype})"
    cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    failure = f"{name} failed on {received}: {cause}."
    for network, advice in _other_networks(denoiser):
        if _works(network, x, t, given):
            return ValueError(f"{failure} {advice}")
    try:  # not every callable has a signature, and a diffusers network refuses some arguments itself
        inputs, keywords = denoiser._arguments(x, t, given)
        signature = inspect.signature(denoiser.module.forward)
    except (TypeError, ValueError):
        names = []
    else:
        names = [each for each in list(signature.parameters)[2:] if each not in given]
        try:
            signature.bind(*inputs, **keywords)
        except TypeError as wrong:
            more = "".join(f", {key}=" for key in given)
            advice = "Wrap it in a module whose forward takes (x, t), and pass other arguments as cond={...}."
            if lacking := re.search(r"missing a required argument: '(\w+)'", str(wrong)):
                advice = f"Pass cond={{'{lacking[1]}': ...}}, with one row per sample."
            return ValueError(
                f"{name} must be called net(x, t{more}): its forward{signature} does not take these "
                f"arguments ({wrong}). It got {received}. {advice}"
            )
    if isinstance(error, ValueError) and str(error).startswith((name, f"the output of {name}")):
        return error  # raised by FLARE, already explained
    for other, time, conditions, advice in _other_inputs(x, t, given, isinstance(error, IndexError)):
        # one row, too: a convolution takes rows without a channel axis for the channels of one sample
        if all(_works(denoiser, other[:n], time[:n], take_rows(conditions, slice(n))) for n in (1, len(x))):
            return ValueError(f"{failure} {advice}")
    words = re.findall(r"\w+", str(error))
    if missing := next((each for each in names if each in words), None):
        return ValueError(f"{failure} Give it as cond={{'{missing}': ...}}, with one row per sample.")
    if names:
        failure += f" Its forward also takes {', '.join(names)}, which go into cond={{...}}."
    width = "Check the width of its first layer, and that the data has no columns that it was not trained on."
    return ValueError(
        f"{failure} It must take samples of shape {tuple(x.shape[1:])}, the shape of the data, with t of "
        f"shape (B,), and return a tensor like x. {width if _WIDTH.search(str(error)) else ''}".rstrip()
    )


class _Swapped(Denoiser):
    """The network called as net(t, x)."""

    def _arguments(
        self, x: Tensor, t: Tensor, cond: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (t, x), cond


def _other_networks(denoiser: Denoiser) -> Iterator[tuple[Denoiser, str]]:
    """Networks that the user may have meant instead, each with advice."""
    net = denoiser.module
    yield _Swapped(net, denoiser.prediction), "It works as net(t, x): swap the arguments of its forward."
    try:
        taken = inspect.signature(net.forward).parameters.values()
    except (TypeError, ValueError):
        taken = {}.values()
    takes_time = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in taken) > 1
    if isinstance(inner := getattr(net, "model", None), nn.Module) and not takes_time:  # it returns a loss
        how = f"Its .model ({type(inner).__name__}) works: pass net.model, with its schedule and prediction."
        yield denoiser._with(inner), how


def _other_inputs(
    x: Tensor, t: Tensor, cond: dict[str, Any], out_of_range: bool
) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], str]]:
    """(x, t, cond) in the forms that the network may expect, each with advice."""
    advice = f"It works with t as {x.dtype}: convert it in its forward, t = t.to(x.dtype)."
    yield x, t.to(x.dtype), cond, advice
    for other, how in _other_shapes(x):
        shapes = f"{tuple(other.shape[1:])}, and the data has {tuple(x.shape[1:])}"
        yield other, t, cond, f"It works on samples of shape {shapes}: {how}"
    for key, value in cond.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield x, t, cond | {key: value.long()}, f"It works with {key} as integers: give {key}.long()."
    if not out_of_range:
        return
    advice = f"It works at t = 0, but not at t = {t.max().item():g}: it has fewer noise levels than the "
    advice += "schedule. Use a schedule with the number of levels that it was trained with."
    yield x, torch.zeros_like(t), cond, advice
    for key, value in cond.items():
        if isinstance(value, Tensor):
            advice = f"It works with {key} = 0, but not with {value.min()} to {value.max()}: give labels "
            advice += "from 0 to one less than the number of its classes."
            yield x, t, cond | {key: torch.zeros_like(value)}, advice


def _other_shapes(x: Tensor) -> Iterator[tuple[Tensor, str]]:
    """The same samples in the shapes of other conventions, each with advice on how to convert the data."""
    if x.ndim > 2:
        yield x.movedim(-1, 1), "move the last axis to the front, data.movedim(-1, 1) (channels come first)."
        yield x.movedim(1, -1), "move the first axis to the end, data.movedim(1, -1)."
        yield x.unsqueeze(1), "add a channel axis, data.unsqueeze(1)."
        yield x.flatten(1), "flatten the samples, data.flatten(1), or reshape them in its forward."
        return
    yield x.unsqueeze(1), "add a channel axis, data.unsqueeze(1)."
    if x.shape[1] > 1:
        yield x[:, 1:], "is the first column an index? Remove it, data[:, 1:]."
        yield x[:, :-1], "is the last column a label? Remove it, data[:, :-1]."


def _works(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None) -> bool:
    try:
        denoiser(x.contiguous(), t, cond)
    except Exception:  # any failure means no
        return False
    return True
