"""One call of a network on a few samples, whose failure is told in the words of who gives the network."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.batch_size import is_out_of_memory
from ..core.conditions import Cond, take_rows
from .denoiser import Denoiser, require_finite

ROWS = 2  # samples of a probe


def probe(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None = None) -> None:
    """Call the network once and raise what is wrong: its arguments, the shape of the data, NaN.

    Nothing is differentiated. A network that takes the data in another shape is recognized by trying.

    Args:
        denoiser: the network.
        x: a few samples, (B, *shape).
        t: what it receives as the time, (B,).
        cond: its keyword arguments.

    Raises:
        ValueError: what was expected, what came with its shape, and what to do.
    """
    require_finite(f"the output of {denoiser.name}", call(denoiser, x, t, cond))


def call(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
    """f(x, t), or the explained failure of the call; see `probe`."""
    try:
        return denoiser(x, t, cond)
    except Exception as error:  # the network is anybody's: it raises what it likes
        if is_out_of_memory(error):
            raise
        raise explain_call_failure(denoiser, error, x, t, cond) from error


def explain_call_failure(
    denoiser: Denoiser, error: Exception, x: Tensor, t: Tensor, cond: Cond | None = None
) -> ValueError:
    """The error that a network raised at (x, t, cond) as one that says what to do."""
    name, came = denoiser.name, f"x of shape {tuple(x.shape)} and t of shape {tuple(t.shape)} ({t.dtype})"
    wrong = _wrong_arguments(denoiser, x, t, cond)
    if wrong is not None:
        given = "".join(f", {key}=" for key in cond or {})
        return ValueError(
            f"{name} must be called net(x, t{given}): {wrong}. It got {came}. Wrap it in a module whose "
            "forward takes (x, t), and give further arguments as cond={...}."
        )
    if isinstance(error, ValueError) and str(error).startswith((name, f"the output of {name}")):
        return error  # from FLARE itself, in plain words already
    said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    told = f"{name} failed on {came}: {said}."
    if _works(denoiser, x, t.to(x.dtype), cond):
        return ValueError(
            f"{told} It works with t as {x.dtype}: convert it in its forward, t = t.to(x.dtype)."
        )
    for other, how in _other_shapes(x):
        if _works(denoiser, other[:ROWS], t[:ROWS], take_rows(cond, slice(ROWS))):
            return ValueError(
                f"{told} It works on samples of shape {tuple(other.shape[1:])}, and the data has "
                f"{tuple(x.shape[1:])}: {how}"
            )
    if isinstance(error, IndexError) and _works(denoiser, x, torch.zeros_like(t), cond):
        return ValueError(
            f"{told} It works at t = 0, but not at t = {t.max().item():g}: it knows fewer noise levels than "
            "the schedule has. Give the number of levels that it was trained with."
        )
    return ValueError(
        f"{told} It must take samples of shape {tuple(x.shape[1:])}, as the data has them, with t of shape "
        "(B,), and answer with a tensor like x. Check the width of its first layer, and that the data has "
        "no columns that it was not trained on."
    )


def _wrong_arguments(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None) -> str | None:
    """Why the network's forward cannot take the arguments at all."""
    try:
        inputs, keywords = denoiser._arguments(x, t, dict(cond or {}))
        signature = inspect.signature(denoiser.module.forward)
    except (TypeError, ValueError):  # not every callable has one
        return None
    try:
        signature.bind(*inputs, **keywords)
    except TypeError as error:
        return f"its forward{signature} does not take these arguments ({error})"
    return None


def _other_shapes(x: Tensor) -> Iterator[tuple[Tensor, str]]:
    """The same samples in the shapes that other conventions give them, and how to get there."""
    if x.ndim > 2:
        yield x.movedim(-1, 1), "move the last axis to the front, data.movedim(-1, 1) (channels come first)."
        yield x.movedim(1, -1), "move the first axis to the end, data.movedim(1, -1)."
        yield x.flatten(1), "flatten the samples, data.flatten(1), or reshape them in its forward."
        return
    yield x.unsqueeze(1), "add an axis for the channel, data.unsqueeze(1)."
    if x.shape[1] > 1:
        yield x[:, 1:], "is the first column an index? Leave it out, data[:, 1:]."
        yield x[:, :-1], "is the last column a label? Leave it out, data[:, :-1]."


def _works(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond | None) -> bool:
    try:
        denoiser(x.contiguous(), t, cond)
    except Exception:  # any failure is an answer here
        return False
    return True
