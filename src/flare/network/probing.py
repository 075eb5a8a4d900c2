"""A trial call of a network on a few samples; a failure is explained in terms of its arguments and data."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.batch_size import is_out_of_memory
from ..core.conditions import Cond, take_rows
from .denoiser import Denoiser, require_finite

ROWS = 2  # samples per trial call


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
    """f(x, t), called twice to refuse random outputs; a failure is explained as in `probe`."""
    try:
        out, again = denoiser(x, t, cond), denoiser(x, t, cond)
    except Exception as error:  # user code may raise anything
        if is_out_of_memory(error):
            raise
        raise explain_call_failure(denoiser, error, x, t, cond) from error
    # up to rounding, which some kernels do not repeat
    if bool((out - again).abs().max() > torch.finfo(denoiser.dtype).eps ** 0.5 * out.abs().max()):
        raise ValueError(
            f"{denoiser.name} must return the same output for the same input, and two calls differ: it draws "
            "random numbers. Turn them off in eval mode, as in F.dropout(x, training=self.training), or pass "
            "them as cond={...}."
        )
    return out


def explain_call_failure(
    denoiser: Denoiser, error: Exception, x: Tensor, t: Tensor, cond: Cond | None = None
) -> ValueError:
    """An error that says what to do about one that the network raised at (x, t, cond)."""
    name, came = denoiser.name, f"x of shape {tuple(x.shape)} and t of shape {tuple(t.shape)} ({t.dtype})"
    wrong = _wrong_arguments(denoiser, x, t, cond)
    if wrong is not None:
        given = "".join(f", {key}=" for key in cond or {})
        return ValueError(
            f"{name} must be called net(x, t{given}): {wrong}. It got {came}. Wrap it in a module whose "
            "forward takes (x, t), and pass further arguments as cond={...}."
        )
    if isinstance(error, ValueError) and str(error).startswith((name, f"the output of {name}")):
        return error  # raised by FLARE, already explained
    cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    failure = f"{name} failed on {came}: {cause}."
    if _works(denoiser, x, t.to(x.dtype), cond):
        return ValueError(
            f"{failure} It works with t as {x.dtype}: convert it in its forward, t = t.to(x.dtype)."
        )
    for other, how in _other_shapes(x):
        if _works(denoiser, other[:ROWS], t[:ROWS], take_rows(cond, slice(ROWS))):
            return ValueError(
                f"{failure} It works on samples of shape {tuple(other.shape[1:])}, and the data has "
                f"{tuple(x.shape[1:])}: {how}"
            )
    if isinstance(error, IndexError) and _works(denoiser, x, torch.zeros_like(t), cond):
        return ValueError(
            f"{failure} It works at t = 0, but not at t = {t.max().item():g}: it has fewer noise levels than "
            "the schedule. Use a schedule with the number of levels that it was trained with."
        )
    if missing := _named_in(error, denoiser, cond):
        return ValueError(f"{failure} Give it as cond={{'{missing}': ...}}, with one row per sample.")
    return ValueError(
        f"{failure} It must take samples of shape {tuple(x.shape[1:])}, the shape of the data, with t of "
        "shape (B,), and return a tensor like x. Check the width of its first layer, and that the data has "
        "no columns that it was not trained on."
    )


def _named_in(error: Exception, denoiser: Denoiser, cond: Cond | None) -> str | None:
    """An argument of the network that an error names, and that was not given; None if there is none."""
    try:
        parameters = list(inspect.signature(denoiser.module.forward).parameters)[2:]
    except (TypeError, ValueError):  # not every callable has a signature
        return None
    words = re.findall(r"\w+", str(error))
    return next((name for name in parameters if name in words and name not in (cond or {})), None)


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
