"""Derivatives of networks: how to compute them, and workarounds for what torch.func does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..core.validation import one_of

Hidden = tuple[Tensor, ...]  # the states of a recurrent layer: (h,), or (h, c) of an LSTM
Cell = Callable[[Tensor, Hidden, Sequence[Any]], Hidden]


class Derivative(str, Enum):
    """How to compute the change of f along a direction of (θ, x).

    A call such as `flare.sample(..., derivative="exact")` decides. With "auto" the setting of the denoiser
    (`Denoiser.by`) applies. If that is "auto" too, `autodiff.jvp.prepare` chooses what suits the network.

    >>> from flare.network.forward_mode import Derivative
    >>> Derivative("secant") is Derivative.SECANT
    True
    """

    AUTO = "auto"
    #: forward-mode differentiation in the dtype of the network, at least float32
    EXACT = "exact"
    #: the same, compiled by torch.compile: for long runs of small networks
    COMPILED = "compiled"
    #: a difference quotient of a float64 copy of the network, which needs no derivative
    SECANT = "secant"

    @classmethod
    def parse(cls, value: str | Derivative) -> Derivative:
        """The setting with this name; an unknown name raises an error with the nearest match."""
        return cls(one_of("derivative", value, [each.value for each in cls]))

    def or_else(self, other: Derivative) -> Derivative:
        """This setting, or the other one if this is AUTO."""
        return other if self is Derivative.AUTO else self


class ForwardModeError(RuntimeError):
    """A network, or a function of its samples, has no forward-mode derivative.

    Args:
        reason: What failed, without a full stop.
        advice: What to do instead.

    Attributes:
        reason: The same, for messages with other advice.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}. {advice}" if advice else reason)
        self.reason = reason


@contextmanager
def plain_attention() -> Iterator[None]:
    """Inside, attention runs unfused: fused kernels have no forward-mode derivative and no batching rule."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def no_checkpointing() -> Iterator[None]:
    """Inside, checkpointed parts of a network run without checkpoints.

    Checkpointing calls layers again in the backward pass, when their parameters are no longer replaced, and
    does not work under torch.func.
    """
    own = {name: getattr(checkpoint, name) for name in _WITHOUT_CHECKPOINTS}
    vars(checkpoint).update(_WITHOUT_CHECKPOINTS)
    try:
        yield
    finally:
        vars(checkpoint).update(own)


class _Plain:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _run_once(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


#: what `torch.utils.checkpoint.checkpoint` calls, reentrant and not, and what runs instead
_WITHOUT_CHECKPOINTS = {"CheckpointFunction": _Plain, "_checkpoint_without_reentrant_generator": _run_once}


class Workarounds(TorchFunctionMode):
    """Inside, group norms see contiguous inputs and recurrent layers run step by step.

    The forward-mode derivative of a group norm fails on other memory layouts, such as outputs of attention.
    Fused recurrent layers have no forward-mode derivative and no batching rule.

    Args:
        more: Further functions of torch, and what runs instead: called with the function and its arguments.
    """

    def __init__(self, more: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self._instead = {**_INSTEAD, **(more or {})}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func` or its replacement."""
        if (instead := self._instead.get(func)) is not None:
            return instead(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def needs_workarounds(module: nn.Module) -> bool:
    """Whether a network needs `Workarounds`, which slow a small network down by a quarter."""
    return any(isinstance(m, (nn.GroupNorm, nn.RNNBase, nn.RNNCellBase)) for m in module.modules())


def _group_norm(function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return function(input.contiguous(), *args, **kwargs)


def _lstm(x: Tensor, state: Hidden, weights: Sequence[Any]) -> Hidden:
    """(h, c) after one step, with the weights [w_ih, w_hh, b_ih, b_hh, w_hr]."""
    h, c = state
    i, f, g, o = (F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights[4] is None else F.linear(h, weights[4])), c


def _gru(x: Tensor, state: Hidden, weights: Sequence[Any]) -> Hidden:
    (h,) = state
    reset, update, new = F.linear(x, weights[0], weights[2]).chunk(3, dim=-1)
    own_reset, own_update, own_new = F.linear(h, weights[1], weights[3]).chunk(3, dim=-1)
    candidate = torch.tanh(new + (reset + own_reset).sigmoid() * own_new)
    z = (update + own_update).sigmoid()
    return ((1 - z) * candidate + z * h,)


def _rnn(activation: Callable[[Tensor], Tensor], x: Tensor, state: Hidden, weights: Sequence[Any]) -> Hidden:
    return (activation(F.linear(x, weights[0], weights[2]) + F.linear(state[0], weights[1], weights[3])),)


def _run_cell(cell: Cell, function: Any, x: Tensor, state: Any, *weights: Tensor | None) -> Any:
    """What `torch.lstm_cell`, `torch.gru_cell`, `torch.rnn_tanh_cell` or `torch.rnn_relu_cell` returns."""
    if isinstance(state, Tensor):
        return cell(x, (state,), [*weights, None])[0]
    return cell(x, tuple(state), [*weights, None])


def _unroll(cell: Cell, function: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """What `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` returns in eval mode.

    These are the outputs, (B, L, ·) or (L, B, ·), and the last states, (layers × directions, B, ·) each.
    """
    if len(args) != 9 or not isinstance(args[3], bool):  # packed sequences
        return function(*args, **kwargs)
    x, initial, params, biased, layers, _, _, bidirectional, batch_first = args
    states = [initial] if isinstance(initial, Tensor) else list(initial)
    if batch_first:
        x = x.transpose(0, 1)
    ways = (False, True) if bidirectional else (False,)
    each = len(params) // (layers * len(ways))  # tensors per layer and direction
    last: list[Hidden] = []
    for _ in range(layers):
        outputs = []
        for backward in ways:
            own = list(params[each * len(last) : each * (len(last) + 1)])
            weights = own if biased else [*own[:2], None, None, *own[2:3]]
            state: Hidden = tuple(start[len(last)] for start in states)
            hidden = []
            for step in reversed(range(len(x))) if backward else range(len(x)):
                state = cell(x[step], state, [*weights, None])
                hidden.append(state[0])
            outputs.append(torch.stack(hidden[::-1] if backward else hidden))
            last.append(state)
        x = torch.cat(outputs, dim=-1)
    outcome = x.transpose(0, 1) if batch_first else x
    return (outcome, *(torch.stack(own) for own in zip(*last, strict=True)))


_tanh, _relu = partial(_rnn, torch.tanh), partial(_rnn, torch.relu)
#: functions of torch, and what runs instead inside `Workarounds`
_INSTEAD: dict[Any, Callable[..., Any]] = {
    F.group_norm: _group_norm,
    torch.lstm: partial(_unroll, _lstm),
    torch.gru: partial(_unroll, _gru),
    torch.rnn_tanh: partial(_unroll, _tanh),
    torch.rnn_relu: partial(_unroll, _relu),
    torch.lstm_cell: partial(_run_cell, _lstm),
    torch.gru_cell: partial(_run_cell, _gru),
    torch.rnn_tanh_cell: partial(_run_cell, _tanh),
    torch.rnn_relu_cell: partial(_run_cell, _relu),
}
