"""Products Jᵀu, and rows of J = ∂f/∂θ over a subset of the parameters.

Products J·v are in `jvp`, gradients of losses in `loss_gradients`. All functions take a batch x (B, *shape),
t (B,) with conditions, and differentiate at the trained parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.func
from torch import Tensor

from ..core.conditions import Cond, has_rows, map_values, take_rows
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from .by_layer import find

vjp: Any = torch.func.vjp  # the annotations do not cover has_aux=False
vmap: Any = torch.func.vmap

MEMORY = 256 * 2**20  # the most bytes of gradients per chunk
_COPIES = 5  # of a chunk of rows: as a list, stacked, weighted, and in float64


def pull(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cotangents: Tensor, cond: Cond | None = None
) -> Tensor:
    """Σ_b J_bᵀ u_b for K cotangents u (K, B, *shape): (K, m)."""
    params = subset.params(denoiser)
    with denoiser.workarounds():
        _, back = vjp(lambda values: denoiser.call(values, x, t, cond), params)
        grads = vmap(lambda u: back(u)[0])(cotangents)
    return subset.gather(grads, lead=1)


def pull_rows(
    denoiser: Denoiser,
    subset: Subset,
    x: Tensor,
    t: Tensor,
    probes: Tensor,
    cond: Cond | None = None,
    state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(∂f/∂θ)ᵀu, (B, k, m), for k probes u per sample; with `state` also (∂f/∂x)ᵀu, (B, k, *shape).

    Args:
        denoiser: the network.
        subset: the parameters to differentiate by.
        x: the states, (B, *shape).
        t: the times, (B,).
        probes: u, (B, k, *shape).
        cond: the conditions of the batch.
        state: whether to differentiate by the state as well.
    """
    layers = None if state else find(denoiser, subset, x, t, cond)
    if layers is not None and (run := layers.run(x, t, cond)) is not None:
        return torch.stack([run.pull(u, len(x)) for u in probes.unbind(1)], dim=1), None
    params = subset.params(denoiser)
    axes = map_values(lambda value: 0 if has_rows(value) else None, cond or {})
    single = map_values(lambda value: value.unsqueeze(1) if has_rows(value) else value, cond or {})

    def one(own_x: Tensor, time: Tensor, u: Tensor, own: dict[str, Any]) -> Any:
        def f(values: dict[str, Tensor], z: Tensor = own_x) -> Tensor:
            return denoiser.call(values, z.unsqueeze(0), time.unsqueeze(0), own).squeeze(0)

        _, back = vjp(f, *((params, own_x) if state else (params,)))
        return vmap(back)(u)

    with denoiser.workarounds():
        grads = vmap(one, in_dims=(0, 0, 0, axes))(x, t, probes, single)
    return subset.gather(grads[0], lead=2), grads[1] if state else None


def iterate_rows(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, probes: Tensor, cond: Cond | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the samples and their (∂f/∂θ)ᵀu, (b, k, m), in chunks that fit into `MEMORY`.

    The samples come in order; those with many probes u come several times, with k of them each.
    """
    layers = find(denoiser, subset, x, t, cond)
    fit = MEMORY // x.element_size()  # numbers
    first = 0
    while layers is not None and first < len(x):
        count = min(max(1, fit // ((layers.row_size or 0) + subset.entry_count)), len(x) - first)
        here = slice(first, first + count)
        run = layers.run(x[here], t[here], take_rows(cond, here))
        if run is None:
            break
        for some in probes[here].split(max(1, fit // (_COPIES * count * subset.size)), dim=1):
            yield here, torch.stack([run.pull(u, count) for u in some.unbind(1)], dim=1)
        del run  # its graph, before that of the next pass is made
        first += count
    for there, which in split_chunks(denoiser, subset, len(x) - first, probes.shape[1]):
        here = slice(first + there.start, first + there.stop)
        own = take_rows(cond, here)
        yield here, pull_rows(denoiser, subset, x[here], t[here], probes[here, which], own)[0]


def jacobian(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None = None
) -> tuple[Tensor, Tensor]:
    """∂f/∂θ over the subset (B, d, m) and ∂f/∂x (B, d, d), computed in chunks of at most `MEMORY` bytes."""
    d = x[0].numel()
    basis = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
    by_theta, by_x = x.new_empty(len(x), d, subset.size), x.new_empty(len(x), d, d)
    for here, some in split_chunks(denoiser, subset, len(x), d):
        probes = basis[some].expand(here.stop - here.start, *basis[some].shape)
        g, h = pull_rows(denoiser, subset, x[here], t[here], probes, take_rows(cond, here), state=True)
        by_theta[here, some], by_x[here, some] = g, cast("Tensor", h).flatten(2)
    return by_theta, by_x


def split_chunks(
    denoiser: Denoiser, subset: Subset, samples: int, probes: int
) -> Iterator[tuple[slice, slice]]:
    """Slices of the samples and of the probes whose gradients fit into `MEMORY`.

    By torch.func, a gradient is as large as all tensors with entries in the subset, until `Subset.gather`
    picks the entries.
    """
    numbers = sum(shape.numel() for shape in subset.shapes.values())
    fit = max(1, MEMORY // (numbers * torch.finfo(denoiser.dtype).bits // 8))
    for first in range(0, samples, max(1, fit // probes)):
        here = slice(first, min(first + max(1, fit // probes), samples))
        for begin in range(0, probes, fit):
            yield here, slice(begin, min(begin + fit, probes))
