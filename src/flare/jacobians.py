"""J = ∂f/∂θ over a subset: J v, Jᵀ u and rows of J, never the full d × p Jacobian.

All functions work on a batch x (B, *shape), t (B,) with conditions, at the trained parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.func
from torch import Tensor

from .checks import one_of
from .conditions import at, has_rows, mapped, moved
from .denoiser import DERIVATIVES, Cond, Denoiser, times
from .forward import Cures, ForwardModeError, plain_attention
from .subsets import Subset

# their annotations do not know has_aux=False, or out_dims=(None, 0)
jvp: Any = torch.func.jvp
vjp: Any = torch.func.vjp
vmap: Any = torch.func.vmap

MEMORY = 256 * 2**20  # bytes that the gradients of one chunk may take
SECANT = 2.0  # the step of a secant, in cube roots of the rounding unit: 1% in float32
_FLOOR = 1e-3  # the least size of a number that this step is measured by
Function = Callable[[dict[str, Tensor]], Tensor]


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

    By forward-mode differentiation, or by secants if the denoiser says so (`Denoiser.by`).

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
    here: dict[str, Tensor] = {}  # what moves by name, the state as ""
    changes: dict[str, Tensor] = {}
    sizes: list[Tensor] = []  # how large the changes are beside what they change, (K,) each
    secantly = denoiser.derivative == "secant"
    if subset is not None and tangents is not None:
        here |= subset.params(denoiser)
        changes |= {name: change.to(here[name].dtype) for name, change in tangents.items()}
        if secantly:
            sizes.append(_relative(subset.gather(here)[None], subset.gather(changes, lead=1)[:, None]))
    if dx is not None:
        here[""], changes[""] = x, dx
        sizes += [_relative(x, dx)] if secantly else []

    def f(values: dict[str, Tensor]) -> Tensor:
        params = dict(values)
        return denoiser.call(params, params.pop("", x), t, cond)

    if secantly:
        return _secant(f, here, changes, torch.stack(sizes).amax(0), denoiser.dtype)
    with denoiser.forward_mode():
        return vmap(lambda change: jvp(f, (here,), (change,)), out_dims=(None, 0))(changes)


def differentiable(
    denoiser: Denoiser, subset: Subset, derivative: str, x: Tensor, time: float, cond: Cond | None = None
) -> Denoiser:
    """The denoiser with the derivative that was asked for: `exact`, `secant`, or `auto`.

    `auto` is exact, and secant, with a warning, if the derivative fails at the first sample.

    Args:
        denoiser: the network.
        subset: whose parameters move.
        derivative: what was asked for.
        x: samples to try it on, (B, *shape).
        time: what the network receives.
        cond: the conditions of the samples.
    """
    if one_of("derivative", derivative, ("auto", *DERIVATIVES)) != "auto":
        return denoiser.by(derivative)
    if denoiser.derivative == "secant":
        return denoiser
    x = x[:1].to(denoiser.device, torch.promote_types(denoiser.dtype, torch.float32))
    t, own = times(time, x), moved(at(cond, slice(0, 1)), x.device)
    denoiser(x, t, own)  # what is wrong without derivatives says so itself
    still = {name: torch.zeros_like(p)[None] for name, p in subset.params(denoiser).items()}
    try:
        push(denoiser, subset, still, x, torch.zeros_like(x)[None], t, own)
    except ForwardModeError as error:
        why = str(error).split(". Use ")[0]
        warnings.warn(f"{why}; derivative='auto' takes secants.", RuntimeWarning, stacklevel=4)
        return denoiser.by("secant")
    return denoiser


def through(function: Callable[[Tensor], Tensor], x: Tensor, dx: Tensor, derivative: str = "exact") -> Tensor:
    """How a function φ of samples moves with them: ∂φ/∂x·δx_k, (K, B, *out), one direction at a time.

    Args:
        function: φ, (B, *shape) -> (B, *out).
        x: the samples, (B, *shape).
        dx: δx, (K, B, *shape).
        derivative: `exact`, or `secant`.
    """
    if derivative == "secant":
        sizes = _relative(x, dx)
        return _secant(lambda values: function(values[""]), {"": x}, {"": dx}, sizes, x.dtype)[1]
    try:
        with plain_attention(), Cures():
            return torch.stack([jvp(function, (x,), (one,))[1] for one in dx])
    except (RuntimeError, NotImplementedError) as error:
        raise ForwardModeError(
            f"{getattr(function, '__name__', type(function).__name__)} cannot be differentiated forward: "
            f"{str(error).splitlines()[0]}. Use derivative='secant', or write it in differentiable "
            "operations of torch."
        ) from error


def _secant(
    f: Function, here: dict[str, Tensor], changes: dict[str, Tensor], sizes: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """F and (f(here + h·change) − f(here))/h along K changes: one more call each.

    h makes a change `SECANT`·ε^(1/3) of what it changes, between truncation, which grows with h, and
    rounding, which falls with it.
    """
    value = f(here)
    step = SECANT * torch.finfo(dtype).eps ** (1 / 3)
    out = []
    for k, size in enumerate(sizes.tolist()):
        h = step / size if size > 0 else 0.0
        moved = {name: there + h * changes[name][k] for name, there in here.items()} if h else None
        out.append(torch.zeros_like(value) if moved is None else (f(moved) - value) / h)
    return value, torch.stack(out)


def _relative(value: Tensor, change: Tensor) -> Tensor:
    """‖change_k‖/‖value‖ as a root mean square over the rows: (B, ...), (K, B, ...) -> (K,)."""
    floor = _FLOOR * value[0].numel() ** 0.5
    norms = value.flatten(1).norm(dim=1).clamp(min=floor)
    return (change.flatten(2).norm(dim=2) / norms).square().mean(1).sqrt()


def pull(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cotangents: Tensor, cond: Cond | None = None
) -> Tensor:
    """Σ_b J_bᵀ u_b for K cotangents u (K, B, *shape): (K, m)."""
    params = subset.params(denoiser)
    with denoiser.cured():
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
    axes = mapped(lambda value: 0 if has_rows(value) else None, cond or {})
    single = mapped(lambda value: value.unsqueeze(1) if has_rows(value) else value, cond or {})

    def one(own_x: Tensor, time: Tensor, u: Tensor, own: dict[str, Any]) -> Any:
        def f(values: dict[str, Tensor], z: Tensor = own_x) -> Tensor:
            return denoiser.call(values, z.unsqueeze(0), time.unsqueeze(0), own).squeeze(0)

        _, back = vjp(f, *((params, own_x) if state else (params,)))
        return vmap(back)(u)

    with denoiser.cured():
        grads = vmap(one, in_dims=(0, 0, 0, axes))(x, t, probes, single)
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
