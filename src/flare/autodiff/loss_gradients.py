"""The gradient of every sample's loss over a subset of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.func
from torch import Tensor

from ..core.conditions import Cond, has_rows, map_values, take_rows
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from .by_layer import find
from .vjp import MEMORY, split_chunks

vmap: Any = torch.func.vmap  # the annotations do not cover nested in_dims


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
    losses = _Losses(denoiser, subset, x, t, target, weight, cond or {})
    found = losses.from_layers()
    return losses.by_function() if found is None else found


@dataclass(frozen=True)
class _Losses:
    """The arguments of `loss_gradients`, and two ways to their gradients."""

    denoiser: Denoiser
    subset: Subset
    x: Tensor
    t: Tensor
    target: Tensor
    weight: Tensor
    cond: Cond

    def from_layers(self) -> Tensor | None:
        """From what the layers see, all samples together; None if that does not suit the network."""
        x, t = self.x, self.t
        layers = find(self.denoiser, self.subset, *self._three())
        if layers is None:
            return None
        found: list[Tensor] = []
        numbers = (layers.row_size or 0) + 2 * self.subset.entry_count // len(t)  # per state
        fit = max(1, MEMORY // (x.element_size() * numbers))
        for here, some in _split(len(x), len(t), fit):
            states, y = (value[here, some].flatten(0, 1) for value in (x, self.target))
            samples = torch.arange(len(x), device=x.device)[here]
            own = take_rows(self.cond, samples.repeat_interleave(len(t[some])))
            run = layers.run(states, t[some].repeat(len(samples)), own)
            if run is None:
                return None
            w = self.weight[some].repeat(len(samples)).view(-1, *[1] * (y.ndim - 1))
            g = run.pull(w * (run.f - y), len(samples))
            del run  # its graph, before that of the next pass is made
            if some.start == 0:
                found.append(g)
            else:
                found[-1] += g
        return torch.cat(found) if len(found) > 1 else found[0]

    def _three(self) -> tuple[Tensor, Tensor, Cond]:
        """A state of each of three samples, at two times in turn."""
        x, t = self.x, self.t
        samples = torch.tensor([0, len(x) // 2, len(x) - 1], device=x.device)
        states = torch.tensor([0, len(t) - 1, 0], device=x.device)
        return x[samples, states], t[states], take_rows(self.cond, samples)

    def by_function(self) -> Tensor:
        """By torch.func, one backward pass per sample, with all gradients of the tensors in the subset."""
        t, params = self.t, self.subset.params(self.denoiser)
        axes = map_values(lambda value: 0 if has_rows(value) else None, self.cond)
        single = map_values(lambda value: value.unsqueeze(1) if has_rows(value) else value, self.cond)

        def one(states: Tensor, y: Tensor, own: dict[str, Any]) -> Any:
            shared = map_values(lambda v: v.expand(len(t), *v.shape[1:]) if has_rows(v) else v, own)

            def loss(values: dict[str, Tensor]) -> Tensor:
                errors = self.denoiser.call(values, states, t, shared) - y
                return 0.5 * (self.weight * errors.square().flatten(1).sum(1)).sum()

            return torch.func.grad(loss)(params)

        found = []
        for here, _ in split_chunks(self.denoiser, self.subset, len(self.x), 1):
            with self.denoiser.workarounds():
                rows = (self.x[here], self.target[here], take_rows(single, here))
                grads = vmap(one, in_dims=(0, 0, axes))(*rows)
            found.append(self.subset.gather(grads, lead=1))
        return torch.cat(found)


def _split(samples: int, states: int, fit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the samples and of their states with at most `fit` states in all."""
    some, rows = max(1, fit // states), min(fit, states)
    for first in range(0, samples, some):
        for begin in range(0, states, rows):
            yield slice(first, first + some), slice(begin, begin + rows)
