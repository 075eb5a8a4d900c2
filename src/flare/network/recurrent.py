"""Recurrent layers, step by step in operations that torch.func can differentiate and batch.

The fused kernels of torch for LSTM, GRU and RNN layers have no forward-mode derivative and no batching rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Sequence[Tensor]], State]


def _lstm(x: Tensor, state: State, weights: Sequence[Tensor]) -> State:
    """(h, c) after one step; `weights` as `_split_weights` yields them."""
    h, c = state
    i, f, g, o = (F.linear(x, weights[0], weights[2]) + F.linear(h, weights[1], weights[3])).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights[4] is None else F.linear(h, weights[4])), c


def _gru(x: Tensor, state: State, weights: Sequence[Tensor]) -> State:
    (h,) = state
    reset, update, new = F.linear(x, weights[0], weights[2]).chunk(3, dim=-1)
    own_reset, own_update, own_new = F.linear(h, weights[1], weights[3]).chunk(3, dim=-1)
    candidate = torch.tanh(new + (reset + own_reset).sigmoid() * own_new)
    z = (update + own_update).sigmoid()
    return ((1 - z) * candidate + z * h,)


def _plain(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(x: Tensor, state: State, weights: Sequence[Tensor]) -> State:
        return (activation(F.linear(x, weights[0], weights[2]) + F.linear(state[0], weights[1], weights[3])),)

    return cell


_LAYERS: dict[Any, Cell] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: _plain(torch.tanh),
    torch.rnn_relu: _plain(torch.relu),
}


_CELLS: dict[Any, Cell] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _plain(torch.tanh),
    torch.rnn_relu_cell: _plain(torch.relu),
}


class Settings(NamedTuple):
    """The last arguments of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` and `torch.rnn_relu`."""

    biased: bool
    layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool


def is_cell(function: Any) -> bool:
    """Whether a function of torch is a recurrent cell, which `run_cell` replaces."""
    return function in _CELLS


def run_cell(
    function: Any, x: Tensor, state: Tensor | Sequence[Tensor], *weights: Tensor | None
) -> Tensor | State:
    """What `torch.lstm_cell`, `torch.gru_cell`, `torch.rnn_tanh_cell` or `torch.rnn_relu_cell` returns."""
    if isinstance(state, Tensor):
        return _CELLS[function](x, (state,), [*weights, None])[0]  # type: ignore[list-item]
    return _CELLS[function](x, tuple(state), [*weights, None])  # type: ignore[list-item]


def can_unroll(function: Any, arguments: Sequence[Any]) -> bool:
    """Whether a call of torch is a recurrent layer that `unroll` replaces: one without packed sequences."""
    return function in _LAYERS and len(arguments) == 9 and isinstance(arguments[3], bool)


def unroll(
    function: Any,
    x: Tensor,
    initial: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    *settings: Any,
) -> tuple[Tensor, ...]:
    """What `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` returns in eval mode.

    Args:
        function: the function of torch.
        x: the inputs, (B, L, ·) or (L, B, ·).
        initial: the initial states.
        params: the weights and biases of all layers.
        *settings: the fields of `Settings`.

    Returns:
        The outputs, (B, L, ·) or (L, B, ·), and the last states, (layers × directions, B, ·) each.
    """
    given = Settings(*settings)
    cell = _LAYERS[function]
    states = [initial] if isinstance(initial, Tensor) else list(initial)
    if given.batch_first:
        x = x.transpose(0, 1)
    weights = _split_weights(params, given.biased, given.layers * (2 if given.bidirectional else 1))
    last: list[State] = []
    for _ in range(given.layers):
        outputs = []
        for backward in (False, True) if given.bidirectional else (False,):
            state: State = tuple(own[len(last)] for own in states)
            own, hidden = next(weights), []
            for step in reversed(range(len(x))) if backward else range(len(x)):
                state = cell(x[step], state, own)
                hidden.append(state[0])
            outputs.append(torch.stack(hidden[::-1] if backward else hidden))
            last.append(state)
        x = torch.cat(outputs, dim=-1)
    return (
        x.transpose(0, 1) if given.batch_first else x,
        *(torch.stack(own) for own in zip(*last, strict=True)),
    )


def _split_weights(params: Sequence[Tensor], biased: bool, count: int) -> Iterator[list[Any]]:
    """[w_ih, w_hh, b_ih, b_hh, w_hr] per layer and direction, with None for a tensor that it lacks."""
    each = len(params) // count
    for first in range(0, len(params), each):
        own = list(params[first : first + each])
        weights, rest = own[:2], own[2:]
        biases, rest = (rest[:2], rest[2:]) if biased else ([None, None], rest)
        yield [*weights, *biases, rest[0] if rest else None]
