"""Products Jᵀu, and rows of J = ∂f/∂θ over a subset of the parameters.

Products J·v are in `jvp`. All functions differentiate at the trained parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.func
from torch import Tensor

from ..core.conditions import Cond, has_rows, map_values, take_rows
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from .by_layer import ByLayer, Rows

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
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, probes: Tensor, cond: Cond | None = None
) -> Tensor:
    """(∂f/∂θ)ᵀu, (B, k, m), for k probes u (B, k, *shape) per sample."""
    run = ByLayer(denoiser, subset, x, t, cond).run(x, t, cond)
    return torch.stack([run.pull(u, len(x)) for u in probes.unbind(1)], dim=1)


def iterate_rows(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, probes: Tensor, cond: Cond | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield slices of the samples, their f and their (∂f/∂θ)ᵀu, (b, k, m), in chunks that fit into `MEMORY`.

    The samples come in order; those with many probes u come several times, with k of them each.
    """
    layers = ByLayer(denoiser, subset, x, t, cond)
    fit = MEMORY // x.element_size()  # numbers
    count = max(1, fit // (layers.row_size + 3 * subset.entry_count))  # entries, joined and contracted
    for first in range(0, len(x), count):
        here = slice(first, min(first + count, len(x)))
        run = layers.run(x[here], t[here], take_rows(cond, here))
        for some in probes[here].split(max(1, fit // (_COPIES * count * subset.size)), dim=1):
            yield here, run.f, torch.stack([run.pull(u, len(u)) for u in some.unbind(1)], dim=1)
        del run  # its graph, before that of the next pass is made


def iterate_states(
    denoiser: Denoiser,
    subset: Subset,
    x: Tensor,
    t: Tensor,
    cond: Cond | None = None,
    watch: Sequence[str] = (),
    tried: dict[Any, ByLayer] | None = None,
) -> Iterator[tuple[slice, slice, Rows]]:
    """Call the network with K states of every sample, x (B, K, *shape) at times t (K,), as memory allows.

    Yields a slice of the samples, a slice of their states, and the call with all of these, sample by sample.
    `watch` names layers whose outputs the calls remember. `tried` caches the findings of a trial of the
    network on such states, which costs about as much as 30 calls. Use a separate cache for each network,
    subset and `watch`.
    """
    cond, tried = cond or {}, {} if tried is None else tried
    work = (x.shape[2:], x.dtype, tuple(sorted(cond)))
    if work not in tried:
        tried[work] = ByLayer(denoiser, subset, x[:, 0], t[:1].expand(len(x)), cond, watch)
    layers = tried[work]
    numbers = layers.row_size + 2 * subset.entry_count  # per state
    fit = max(1, MEMORY // (x.element_size() * numbers))
    for here, some in chunks(len(x), len(t), fit):
        samples = torch.arange(len(x), device=x.device)[here]
        own = take_rows(cond, samples.repeat_interleave(len(t[some])))
        run = layers.run(x[here, some].flatten(0, 1), t[some].repeat(len(samples)), own)
        yield here, some, run
        del run  # its graph, before that of the next pass is made


def jacobian(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None = None
) -> tuple[Tensor, Tensor]:
    """∂f/∂θ over the subset (B, d, m) and ∂f/∂x (B, d, d), computed in chunks of at most `MEMORY` bytes."""
    d, params = x[0].numel(), subset.params(denoiser)
    basis = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
    by_theta, by_x = x.new_empty(len(x), d, subset.size), x.new_empty(len(x), d, d)
    axes = map_values(lambda value: 0 if has_rows(value) else None, cond or {})
    single = map_values(lambda value: value.unsqueeze(1) if has_rows(value) else value, cond or {})

    def one(own_x: Tensor, time: Tensor, u: Tensor, own: dict[str, Any]) -> Any:
        def f(values: dict[str, Tensor], z: Tensor) -> Tensor:
            return denoiser.call(values, z.unsqueeze(0), time.unsqueeze(0), own).squeeze(0)

        return vmap(vjp(f, params, own_x)[1])(u)

    for here, some in split_chunks(denoiser, subset, len(x), d):
        with denoiser.workarounds():
            rows = (x[here], t[here], basis[some], take_rows(single, here))
            grads, by_state = vmap(one, in_dims=(0, 0, None, axes))(*rows)
        by_theta[here, some], by_x[here, some] = subset.gather(grads, lead=2), by_state.flatten(2)
    return by_theta, by_x


def split_chunks(
    denoiser: Denoiser, subset: Subset, samples: int, probes: int
) -> Iterator[tuple[slice, slice]]:
    """Slices of the samples and of the probes whose gradients fit into `MEMORY`.

    By torch.func, a gradient is as large as all tensors with entries in the subset, until `Subset.gather`
    picks the entries.
    """
    numbers = sum(shape.numel() for shape in subset.shapes.values())
    fit = MEMORY // (numbers * torch.finfo(denoiser.dtype).bits // 8)
    return chunks(samples, probes, max(1, fit))


def chunks(rows: int, columns: int, fit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the rows and columns of a table with at most `fit` cells in all."""
    for first in range(0, rows, max(1, fit // columns)):
        here = slice(first, min(first + max(1, fit // columns), rows))
        for begin in range(0, columns, fit):
            yield here, slice(begin, min(begin + fit, columns))
