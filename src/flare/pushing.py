"""J v: how the network's answer moves when its parameters and its state do, by one of three derivatives.

`exact` is forward-mode differentiation, all directions in one batched pass: three to five network calls a
direction. `compiled` is the same, compiled for each batch size: that takes half a minute, and a third of the
time or less from then on. `secant` is one more call a direction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.func
from torch import Tensor

from .checks import one_of
from .conditions import at, moved
from .denoiser import DERIVATIVES, Cond, Denoiser, Params, times
from .forward import Cures, ForwardModeError, plain_attention
from .secants import Movable, relative, rowwise, secants
from .subsets import Subset

# their annotations do not know has_aux=False, or out_dims=(None, 0)
jvp: Any = torch.func.jvp
vmap: Any = torch.func.vmap

ROWS = 4096  # samples × directions in one batched pass: more of them fall out of the cache
_COMPILED = 256  # networks and shapes that one process may compile
FAR = 64.0  # a sample whose δx is so many times the typical one has a secant of its own


class Push:
    """f(x, t) and its change along K directions of (θ, x) jointly: ∂f/∂θ·δθ_k + ∂f/∂x·δx_k.

    Args:
        denoiser: the network; it says which derivative (`Denoiser.by`).
        subset: whose parameters move; None if none do.
        directions: D, (m, K); None if no parameters move.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset | None = None, directions: Tensor | None = None
    ) -> None:
        self.denoiser = denoiser
        self.here: dict[str, Tensor] = {}
        self.tangents: dict[str, Tensor] = {}
        self.movable: Movable | None = None
        if subset is None or directions is None:
            return
        D = directions.T.to(denoiser.device, denoiser.dtype).contiguous()
        if denoiser.derivative == "secant":
            self.movable = Movable(denoiser, subset, D)
        else:
            self.here = subset.params(denoiser)
            self.tangents = {
                name: change.to(self.here[name].dtype) for name, change in subset.scatter(D).items()
            }
        if denoiser.derivative == "compiled":  # a layer of which some tensors move and others do not fails
            still = {name: value for name, value in denoiser.params.items() if name not in self.here}
            self.here |= still
            self.tangents |= {name: value.new_zeros(len(D), *value.shape) for name, value in still.items()}

    def __call__(
        self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None = None
    ) -> tuple[Tensor, Tensor]:
        """F (B, *shape) and δf (K, B, *shape).

        Args:
            x: the state, (B, *shape).
            dx: δx, (K, B, *shape); None if it does not move.
            t: the time, (B,).
            cond: the conditions of the batch.
        """
        if self.denoiser.derivative == "secant":
            return self._secant(x, dx, t, cond)
        if self.denoiser.derivative == "compiled" and self.here:  # x alone is moved for a score, once
            return self._compiled(x, dx, t, cond)
        with self.denoiser.forward_mode():
            parts = [
                _dual(self.denoiser, self.here, changes, x, steps, t, cond)
                for changes, steps in self._parts(len(x), dx)
            ]
        return parts[0][0], torch.cat([change for _, change in parts])

    def _compiled(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        try:
            # one function for all networks: each of them, and each shape, is compiled by itself
            with self.denoiser.forward_mode(), torch._dynamo.config.patch(cache_size_limit=_COMPILED):
                return _compiler()(self.denoiser, self.here, self.tangents, x, dx, t, cond)
        except ForwardModeError as error:
            raise ForwardModeError(
                f"{self.denoiser.name} could not be compiled: {str(error.__cause__).splitlines()[0]}. Use "
                "derivative='exact', which is the same without a compiler, or 'secant'."
            ) from error

    def _parts(self, rows: int, dx: Tensor | None) -> Iterator[tuple[Params, Tensor | None]]:
        """The changes of θ and of x, so many directions at a time as stay in the cache."""
        count = len(dx if dx is not None else next(iter(self.tangents.values())))
        step = max(1, ROWS // rows)
        for first in range(0, count, step):
            some = slice(first, first + step)
            changes = {name: change[some] for name, change in self.tangents.items()}
            yield changes, None if dx is None else dx[some]

    def _secant(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        dtype, own = self.denoiser.dtype, None if dx is None else relative(x, dx)  # (K, B)
        sizes = [] if self.movable is None else [self.movable.sizes.to(x)]
        sizes += [] if own is None else [own.median(1).values]
        size = torch.stack(sizes).amax(0)

        def f(k: int, h: float) -> Tensor:
            params = {} if self.movable is None else self.movable.along(k, h)
            state = x if dx is None else torch.add(x, dx[k], alpha=h)
            return self.denoiser.call(params, state, t, cond)

        value = self.denoiser(x, t, cond)
        change = secants(f, value, size, dtype)
        if own is None or dx is None or not (far := own > FAR * size[:, None]).any():
            return value, change
        for pairs in far.nonzero().split(len(x)):  # far samples along any direction, in batches
            k, rows = pairs.T
            here = (x[rows], t[rows], at(cond, rows), value[rows])
            change[k, rows] = self._by_state(dx[k, rows], own[k, rows], *here)
        if self.movable is not None:
            for k in far.any(1).nonzero().flatten().tolist():
                rows = far[k].nonzero().flatten()
                here = (x[rows], t[rows], at(cond, rows), value[rows])
                change[k, rows] += self._by_theta(k, self.movable, *here)
        return value, change

    def _by_state(self, dx: Tensor, sizes: Tensor, x: Tensor, t: Tensor, cond: Cond, value: Tensor) -> Tensor:
        """∂f/∂x·δx alone, with a step a sample."""
        return rowwise(lambda z: self.denoiser(z, t, cond), x, dx, value, sizes, self.denoiser.dtype)

    def _by_theta(self, k: int, movable: Movable, x: Tensor, t: Tensor, cond: Cond, value: Tensor) -> Tensor:
        """∂f/∂θ·δθ_k alone, whose step has nothing to do with the samples."""
        size = movable.sizes[k : k + 1].to(x)
        found = secants(
            lambda _, h: self.denoiser.call(movable.along(k, h), x, t, cond), value, size, self.denoiser.dtype
        )
        return found.squeeze(0)


def _dual(
    denoiser: Denoiser,
    here: Params,
    changes: Params,
    x: Tensor,
    steps: Tensor | None,
    t: Tensor,
    cond: Cond | None,
) -> Any:
    """F at (here, x), and δf along the directions (changes, steps), all in one pass."""

    def f(params: Params, state: Tensor) -> Tensor:
        return denoiser.call(params, state, t, cond)

    def along(change: Params, step: Tensor | None) -> Any:
        if step is None:
            return jvp(lambda params: f(params, x), (here,), (change,))
        return jvp(f, (here, x), (change, step))

    return vmap(along, in_dims=(0, None if steps is None else 0), out_dims=(None, 0))(changes, steps)


@cache
def _compiler() -> Any:
    return torch.compile(_dual, fullgraph=True, dynamic=False)


def differentiable(
    denoiser: Denoiser,
    subset: Subset,
    derivative: str,
    x: Tensor,
    time: float,
    cond: Cond | None = None,
    fast: bool = True,
) -> Denoiser:
    """The denoiser with the derivative that was asked for: `exact`, `compiled`, `secant`, or `auto`.

    `auto` takes secants in float32, where they are true enough and the faster (docs/performance.md).
    Otherwise it is exact: float64 is there for its digits. If that fails at the first sample, secants are
    taken with a warning.

    Args:
        denoiser: the network.
        subset: whose parameters move.
        derivative: what was asked for.
        x: samples to try it on, (B, *shape).
        time: what the network receives.
        cond: the conditions of the samples.
        fast: whether secants would be faster; they are not where all of Σ is pushed.
    """
    if one_of("derivative", derivative, ("auto", *DERIVATIVES)) != "auto":
        return denoiser.by(derivative)
    if denoiser.derivative == "secant":
        return denoiser
    if fast and denoiser.dtype == torch.float32:
        return denoiser.by("secant")
    x = x[:1].to(denoiser.device, torch.promote_types(denoiser.dtype, torch.float32))
    t, own = times(time, x), moved(at(cond, slice(0, 1)), x.device)
    denoiser(x, t, own)  # what is wrong without derivatives says so itself
    try:
        Push(denoiser, subset, x.new_zeros(subset.size, 1))(x, torch.zeros_like(x)[None], t, own)
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
        value, sizes = function(x), relative(x, dx)
        pairs = zip(dx, sizes, strict=True)
        return torch.stack([rowwise(function, x, one, value, size, x.dtype) for one, size in pairs])
    try:
        with plain_attention(), Cures():
            return torch.stack([jvp(function, (x,), (one,))[1] for one in dx])
    except (RuntimeError, NotImplementedError) as error:
        raise ForwardModeError(
            f"{getattr(function, '__name__', type(function).__name__)} cannot be differentiated forward: "
            f"{str(error).splitlines()[0]}. Use derivative='secant', or write it in differentiable "
            "operations of torch."
        ) from error
