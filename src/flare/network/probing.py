"""A trial call of a network on a few samples; a failure is explained in terms of its arguments and data."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.conditions import Cond, take_rows
from ..core.memory import is_out_of_memory
from .denoiser import Denoiser, require_finite

ROWS = 2  # samples per trial call
# errors of a matrix product or a convolution about the shape of its input
_WIDTH = re.compile(r"mat1 and mat2 shapes|size mismatch|weight of size .*expected input|input to conv")


def probe(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None = None) -> None:
    """Try the network; raise an error that explains wrong arguments, wrong shapes, random outputs or NaN.

    Nothing is differentiated. If the call fails, other shapes of the data are tried to give better advice.

    Args:
        denoiser: the network.
        x: a few samples, (B, *shape).
        t: the times, (B,).
        cond: keyword arguments of the network.

    Raises:
        ValueError: the call failed or its output is wrong; the message says what to do.
    """
    require_finite(f"the output of {denoiser.name}", call(denoiser, x, t, cond))


def call(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
    """f(x, t); a failure is explained as in `probe`.

    Other calls replace all parameters by copies, and run rows alone: random outputs, parameters that cannot
    be replaced, and rows that depend on each other are refused.
    """
    values = (value for value in tree_leaves((x, t, dict(cond or {}))) if isinstance(value, Tensor))
    inputs = [value for value in values if not value.is_inference()]
    versions = [value._version for value in inputs]
    try:
        out, (again, escapes) = denoiser(x, t, cond), denoiser.call_replaced(x, t, cond)
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
    if escapes:
        raise ValueError(
            f"{denoiser.name} reaches {', '.join(sorted(escapes))} past the module that owns it, through a "
            "list, a function or a hook that keeps a reference: its uncertainty would count as 0. Call the "
            "module in forward, and keep tensors in an nn.ParameterList."
        )
    return out


def _differ(denoiser: Denoiser, out: Tensor, other: Tensor) -> bool:
    """Whether two outputs differ by more than rounding, which some kernels do not repeat."""
    return bool((out - other).abs().max() > torch.finfo(denoiser.dtype).eps ** 0.5 * out.abs().max())


def explain_call_failure(
    denoiser: Denoiser, error: Exception, x: Tensor, t: Tensor, cond: Cond | None = None
) -> ValueError:
    """An error that says what to do about one that the network raised at (x, t, cond)."""
    name, came = denoiser.name, f"x of shape {tuple(x.shape)} and t of shape {tuple(t.shape)} ({t.dtype})"
    cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    failure = f"{name} failed on {came}: {cause}."
    for network, how in _other_networks(denoiser):
        if _works(network, x, t, cond):
            return ValueError(f"{failure} {how}")
    wrong = _wrong_arguments(denoiser, x, t, cond)
    if wrong is not None:
        more = "".join(f", {key}=" for key in cond or {})
        return ValueError(
            f"{name} must be called net(x, t{more}): {wrong}. It got {came}. Wrap it in a module whose "
            "forward takes (x, t), and pass further arguments as cond={...}."
        )
    if isinstance(error, ValueError) and str(error).startswith((name, f"the output of {name}")):
        return error  # raised by FLARE, already explained
    if _works(denoiser, x, t.to(x.dtype), cond):
        return ValueError(
            f"{failure} It works with t as {x.dtype}: convert it in its forward, t = t.to(x.dtype)."
        )
    for other, how in _other_shapes(x):
        # one row, too: a convolution takes rows without a channel axis for the channels of one sample
        if all(_works(denoiser, other[:n], t[:n], take_rows(cond, slice(n))) for n in (1, ROWS)):
            return ValueError(
                f"{failure} It works on samples of shape {tuple(other.shape[1:])}, and the data has "
                f"{tuple(x.shape[1:])}: {how}"
            )
    if isinstance(error, IndexError) and _works(denoiser, x, torch.zeros_like(t), cond):
        return ValueError(
            f"{failure} It works at t = 0, but not at t = {t.max().item():g}: it has fewer noise levels than "
            "the schedule. Use a schedule with the number of levels that it was trained with."
        )
    given = dict(cond or {}) if isinstance(error, IndexError) else {}
    for key, value in given.items():
        if isinstance(value, Tensor) and _works(denoiser, x, t, given | {key: torch.zeros_like(value)}):
            return ValueError(
                f"{failure} It works with {key} = 0, but not with {value.min()} to {value.max()}: give "
                "labels from 0 to one less than the number of its classes."
            )
    if missing := _named_in(error, denoiser, cond):
        return ValueError(f"{failure} Give it as cond={{'{missing}': ...}}, with one row per sample.")
    others = [each.name for each in _parameters(denoiser.module)[2:] if each.name not in (cond or {})]
    if others:
        failure += f" Its forward also takes {', '.join(others)}, which go into cond={{...}}."
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
    """What may have been meant instead of the network, each with advice."""
    net = denoiser.module
    yield _Swapped(net, denoiser.prediction), "It works as net(t, x): swap the arguments of its forward."
    takes_time = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in _parameters(net)) > 1
    if isinstance(inner := getattr(net, "model", None), nn.Module) and not takes_time:  # it returns a loss
        how = f"Its .model ({type(inner).__name__}) works: pass net.model, with its schedule and prediction."
        yield denoiser._with(inner), how


def _parameters(net: nn.Module) -> list[inspect.Parameter]:
    """The arguments of the forward of a network; none if they are not known."""
    try:
        return list(inspect.signature(net.forward).parameters.values())
    except (TypeError, ValueError):  # not every callable has a signature
        return []


def _named_in(error: Exception, denoiser: Denoiser, cond: Cond | None) -> str | None:
    """An argument of the network that an error names, and that was not given; None if there is none."""
    names = [each.name for each in _parameters(denoiser.module)[2:]]
    words = re.findall(r"\w+", str(error))
    return next((name for name in names if name in words and name not in (cond or {})), None)


def _wrong_arguments(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None) -> str | None:
    """Why the forward of the network cannot take these arguments; None if it can."""
    try:
        inputs, keywords = denoiser._arguments(x, t, dict(cond or {}))
        signature = inspect.signature(denoiser.module.forward)
    except (TypeError, ValueError):  # not every callable has a signature
        return None
    try:
        signature.bind(*inputs, **keywords)
    except TypeError as error:
        return f"its forward{signature} does not take these arguments ({error})"
    return None


def _other_shapes(x: Tensor) -> Iterator[tuple[Tensor, str]]:
    """The same samples in the shapes of other conventions, each with advice on how to convert the data."""
    if x.ndim > 2:
        yield x.movedim(-1, 1), "move the last axis to the front, data.movedim(-1, 1) (channels come first)."
        yield x.movedim(1, -1), "move the first axis to the end, data.movedim(1, -1)."
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
