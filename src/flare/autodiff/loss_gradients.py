"""The gradient of every sample's loss over a subset of the parameters."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.conditions import Cond, take_rows
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from .by_layer import ByLayer
from .vjp import MEMORY


def loss_gradients(
    denoiser: Denoiser,
    subset: Subset,
    x: Tensor,
    t: Tensor,
    target: Tensor,
    weight: Tensor,
    cond: Cond | None = None,
) -> Tensor:
    """∇_θ Σ_k ½w_k‖f(x_k, t_k) − y_k‖² of every sample, (B, m), in chunks that fit in memory.

    Args:
        denoiser: the network.
        subset: the parameters to differentiate by.
        x: K states of every sample, (B, K, *shape).
        t: their times, (K,).
        target: y, (B, K, *shape).
        weight: w, (K,).
        cond: the conditions of the samples, which all K states share.
    """
    cond = cond or {}
    layers = ByLayer(denoiser, subset, x[:, 0], t[:1].expand(len(x)), cond)
    numbers = layers.row_size + 2 * subset.entry_count // len(t)  # per state
    fit = max(1, MEMORY // (x.element_size() * numbers))
    found: list[Tensor] = []
    for here, some in _split(len(x), len(t), fit):
        states, y = (value[here, some].flatten(0, 1) for value in (x, target))
        samples = torch.arange(len(x), device=x.device)[here]
        own = take_rows(cond, samples.repeat_interleave(len(t[some])))
        run = layers.run(states, t[some].repeat(len(samples)), own)
        w = weight[some].repeat(len(samples)).view(-1, *[1] * (y.ndim - 1))
        g = run.pull(w * (run.f - y), len(samples))
        del run  # its graph, before that of the next pass is made
        if some.start == 0:
            found.append(g)
        else:
            found[-1] += g
    return torch.cat(found) if len(found) > 1 else found[0]


def _split(samples: int, states: int, fit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the samples and of their states with at most `fit` states in all."""
    some, rows = max(1, fit // states), min(fit, states)
    for first in range(0, samples, some):
        for begin in range(0, states, rows):
            yield slice(first, first + some), slice(begin, begin + rows)
