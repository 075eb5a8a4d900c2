"""J = ∂f/∂θ over a subset: J v, Jᵀ u and rows of J, never the full d × p Jacobian.

All functions work on a batch x (B, *shape), t (B,) with conditions, at the trained parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.func
from torch import Tensor

from .denoiser import Cond, Denoiser, plain_attention
from .subsets import Subset

# their annotations do not know has_aux=False, or out_dims=(None, 0)
jvp: Any = torch.func.jvp
vjp: Any = torch.func.vjp
vmap: Any = torch.func.vmap

MEMORY = 256 * 2**20  # bytes that the gradients of one chunk may take


def push(
    denoiser: Denoiser,
    subset: Subset | None,
    tangents: dict[str, Tensor] | None,
    x: Tensor,
    dx: Tensor | None,
    t: Tensor,
    cond: Cond | None = None,
) -> tuple[Tensor, Tensor]:
    """f(x, t) and its change along K directions of (θ, x) jointly: ∂f/∂θ·δθ_k + ∂f/∂x·δx_k.

    Args:
        denoiser: the network.
        subset: whose parameters move; None if none do.
        tangents: δθ as `subset.scatter` gives it, (K, *param); None if none move.
        x: the state, (B, *shape).
        dx: δx, (K, B, *shape); None if it does not move.
        t: the time, (B,).
        cond: the conditions of the batch.

    Returns:
        f (B, *shape) and δf (K, B, *shape).
    """
    moving: dict[str, Any] = {}
    if subset is not None and tangents is not None:
        moving["params"] = (subset.params(denoiser), tangents)
    if dx is not None:
        moving["x"] = (x, dx)
    names = list(moving)

    def f(*values: Any) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return denoiser.call(given.get("params", {}), given.get("x", x), t, cond)

    primals = tuple(here for here, _ in moving.values())

    def along(*directions: Any) -> tuple[Tensor, Tensor]:
        return jvp(f, primals, directions)

    with denoiser.forward_mode():
        return vmap(along, out_dims=(None, 0))(*(change for _, change in moving.values()))


def pull(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cotangents: Tensor, cond: Cond | None = None
) -> Tensor:
    """Σ_b J_bᵀ u_b for K cotangents u (K, B, *shape): (K, m)."""
    params = subset.params(denoiser)
    with plain_attention():
        _, back = vjp(lambda values: denoiser.call(values, x, t, cond), params)
        grads = vmap(lambda u: back(u)[0])(cotangents)
    return subset.gather(grads, lead=1)


def rows(
    denoiser: Denoiser,
    subset: Subset,
    x: Tensor,
    t: Tensor,
    probes: Tensor,
    cond: Cond | None = None,
    state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(∂f/∂θ)ᵀu (B, k, m) for the k probes u of each sample; with `state`, (∂f/∂x)ᵀu (B, k, *shape) too.

    Args:
        denoiser: the network.
        subset: over which parameters.
        x: the states, (B, *shape).
        t: the times, (B,).
        probes: u, (B, k, *shape).
        cond: the conditions of the batch.
        state: whether to differentiate by the state, too.
    """
    params = subset.params(denoiser)
    split, whole = _split(cond)

    def one(own_x: Tensor, time: Tensor, u: Tensor, own: dict[str, Tensor]) -> Any:
        batched = {name: value.unsqueeze(0) for name, value in own.items()} | whole

        def f(values: dict[str, Tensor], z: Tensor = own_x) -> Tensor:
            return denoiser.call(values, z.unsqueeze(0), time.unsqueeze(0), batched).squeeze(0)

        _, back = vjp(f, *((params, own_x) if state else (params,)))
        return vmap(back)(u)

    with plain_attention():
        grads = vmap(one)(x, t, probes, split)
    return subset.gather(grads[0], lead=2), grads[1] if state else None


def jacobian(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None = None
) -> tuple[Tensor, Tensor]:
    """∂f/∂θ over the subset (B, d, m) and ∂f/∂x (B, d, d), made in chunks within `MEMORY`."""
    d = x[0].numel()
    basis = torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
    by_theta, by_x = x.new_empty(len(x), d, subset.size), x.new_empty(len(x), d, d)
    for here, some in chunked(denoiser, subset, len(x), d):
        probes = basis[some].expand(here.stop - here.start, *basis[some].shape)
        g, h = rows(denoiser, subset, x[here], t[here], probes, at(cond, here), state=True)
        by_theta[here, some], by_x[here, some] = g, cast("Tensor", h).flatten(2)
    return by_theta, by_x


def chunked(denoiser: Denoiser, subset: Subset, samples: int, probes: int) -> Iterator[tuple[slice, slice]]:
    """Slices (of the samples, of the probes) whose gradients fit into `MEMORY` together.

    A gradient is as large as the tensors that the subset has a part in, until its entries are taken.
    """
    numbers = sum(shape.numel() for shape in subset.shapes.values())
    fit = max(1, MEMORY // (numbers * torch.finfo(denoiser.dtype).bits // 8))
    for first in range(0, samples, max(1, fit // probes)):
        here = slice(first, min(first + max(1, fit // probes), samples))
        for begin in range(0, probes, fit):
            yield here, slice(begin, min(begin + fit, probes))


def at(cond: Cond | None, here: slice | Tensor) -> dict[str, Any]:
    """The conditions of some samples: rows of the tensors that have rows."""
    split, whole = _split(cond)
    return {name: value[here] for name, value in split.items()} | whole


def _split(cond: Cond | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The conditions that have one row a sample, and the others."""
    cond = cond or {}
    rows = {k: v for k, v in cond.items() if isinstance(v, Tensor) and v.ndim > 0}
    return rows, {k: v for k, v in cond.items() if k not in rows}
