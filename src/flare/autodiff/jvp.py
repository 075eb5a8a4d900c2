"""Products J·v: how the output of the network changes with its parameters and its state.

`exact` is forward-mode differentiation with all directions in one batched pass: the more directions, the less
each costs. `compiled` is the same, compiled per batch size. `secant` is a difference quotient of a float64
copy of the network; every direction costs two to four float32 calls, and it needs no derivative.
`prepare` chooses; `docs/evidence/performance.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.func
from torch import Tensor

from ..core.conditions import Cond, take_rows, to_device
from ..core.memory import is_out_of_memory
from ..core.progress import warn
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, Params, times
from ..network.forward_mode import Derivative, ForwardModeError, Workarounds, plain_attention
from .contractions import CONVOLUTIONS
from .finite_difference import Movable, difference, relative_size, standard_step

# the annotations of torch.func do not cover has_aux=False and out_dims=(None, 0)
jvp: Any = torch.func.jvp
vmap: Any = torch.func.vmap

ROWS = 4096  # samples × directions per batched pass: more would not fit into the cache
_NUMBERS = 2**20  # in the states of a batched pass: the layers of an image network hold many times more
_COMPILED = 256  # the most networks and shapes that a process compiles
_MANY = 4  # the fewest directions for which exact derivatives of convolutions are faster than secants
_MOVED = 2**26  # the most numbers in the directions of the parameters that are then affordable


class Push:
    """f(x, t) and its change along K directions of (θ, x) jointly: ∂f/∂θ·δθ_k + ∂f/∂x·δx_k.

    Args:
        denoiser: The network from `prepare`; its `derivative` decides how it is differentiated. AUTO means
            EXACT here, and SECANT uses a float64 copy of the network.
        subset: The parameters that move; None if none do.
        directions: D, (m, K); None if no parameters move.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset | None = None, directions: Tensor | None = None
    ) -> None:
        self._way = denoiser.derivative
        self.denoiser = denoiser = (
            denoiser.wide(torch.float64) if self._way is Derivative.SECANT else denoiser
        )
        self.movable: Movable | None = None
        self._here: dict[str, Tensor] = {}
        self._tangents: dict[str, Tensor] = {}
        if subset is None or directions is None:
            return
        D = directions.T.to(denoiser.device, denoiser.dtype).contiguous()
        if self._way is Derivative.SECANT:
            self.movable = Movable(denoiser, subset, D)
            return
        self._here = subset.params(denoiser)
        self._tangents = {n: change.to(self._here[n].dtype) for n, change in subset.scatter(D).items()}
        if self._way is Derivative.COMPILED:
            # torch.compile fails if only some of a layer's tensors carry tangents
            still = {name: value for name, value in denoiser.params.items() if name not in self._here}
            self._here |= still
            self._tangents |= {name: value.new_zeros(len(D), *value.shape) for name, value in still.items()}

    def __call__(
        self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None = None
    ) -> tuple[Tensor, Tensor]:
        """f (B, *shape) and δf (K, B, *shape), both in the dtype of x.

        Args:
            x: The state, (B, *shape).
            dx: δx, (K, B, *shape); None if the state does not move.
            t: The time, (B,).
            cond: The conditions of the batch.
        """
        if dx is None and self.movable is None and not self._tangents:
            raise ValueError("give a subset with directions, or dx, or both; got neither.")
        if self._way is Derivative.SECANT:
            return self._secant(x, dx, t, cond)
        if self._way is Derivative.COMPILED and self._here:  # x alone moves in scores, by a single call
            return self._compiled(x, dx, t, cond)
        count = len(dx if dx is not None else next(iter(self._tangents.values())))
        step, parts = max(1, min(ROWS // len(x), _NUMBERS // x.numel())), []
        with self.denoiser.forward_mode():
            for first in range(0, count, step):
                some = slice(first, first + step)
                changes = {name: change[some] for name, change in self._tangents.items()}
                directions = changes, None if dx is None else dx[some]
                parts.append(_dual(self.denoiser, (self._here, x), directions, t, cond))
        return parts[0][0], torch.cat([change for _, change in parts])

    def _compiled(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        try:
            # one function for all networks; torch.compile specializes it per network and shape
            with self.denoiser.forward_mode(), torch._dynamo.config.patch(cache_size_limit=_COMPILED):
                return _compiler()(self.denoiser, (self._here, x), (self._tangents, dx), t, cond)
        except ForwardModeError as error:
            raise ForwardModeError(
                f"{self.denoiser.name} could not be compiled: {str(error.__cause__).splitlines()[0]}",
                "Use derivative='exact', which gives the same numbers without a compiler, or 'secant'.",
            ) from error

    def _secant(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        inner = x.to(torch.promote_types(x.dtype, self.denoiser.dtype))
        if self.movable is None:
            assert dx is not None
            value, change = _differences(lambda z: self.denoiser(z, t, cond), inner, dx)
            return value.to(x.dtype), change.to(x.dtype)
        value = self.denoiser(inner, t, cond)
        change = value.new_empty(len(self.movable.directions), *value.shape)
        for k, size in enumerate(self.movable.sizes.tolist()):
            h = standard_step(size)  # depends on δθ_k alone, not on the samples
            state = inner if dx is None else torch.add(inner, dx[k], alpha=h)
            with self.movable.along(k, h) as params:
                there = self.denoiser.call(params, state, t, cond)
            torch.sub(there, value, out=change[k]).div_(h)
        return value.to(x.dtype), change.to(x.dtype)


def _differences(f: Callable[[Tensor], Tensor], x: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and its difference quotients along δx (K, B, *shape), with one step per sample."""
    value, sizes = f(x), relative_size(x, dx)
    pairs = zip(dx, sizes, strict=True)
    return value, torch.stack([difference(f, x, one, value, size) for one, size in pairs])


def _dual(
    denoiser: Denoiser,
    point: tuple[Params, Tensor],
    directions: tuple[Params, Tensor | None],
    t: Tensor,
    cond: Cond | None,
) -> Any:
    """f at the point (θ, x) and δf along the directions (δθ, δx), all in one pass."""
    here, x = point
    changes, steps = directions

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


def prepare(
    denoiser: Denoiser,
    subset: Subset,
    derivative: str | Derivative,
    x: Tensor,
    time: float,
    cond: Cond | None = None,
    directions: int | str = 1,
    instead: str = "rule='monte_carlo', which needs no derivative",
) -> Denoiser:
    """The network in the precision that its derivatives need, with a `derivative` other than AUTO.

    AUTO becomes `secant` for a network in float32 or half precision on a CPU, where float64 is cheap. It
    becomes `exact` in float64, on other devices, if all of Σ is pushed, and for many directions through a
    network of convolutions, where it is faster. If the preferred way fails on one sample, the other one is
    the fallback. A way that is requested by name has no fallback.

    Args:
        denoiser: The network.
        subset: The parameters that move.
        derivative: The request of the caller; AUTO takes the setting of the denoiser.
        x: Samples to try the network on, (B, *shape).
        time: The time that the network receives.
        cond: The conditions of the samples.
        directions: The number of directions, or "exact" for all m.
        instead: An alternative for a network without derivatives, for the error message.

    Raises:
        ForwardModeError: the network has no derivative, or not the requested one.
    """
    asked = Derivative.parse(derivative).or_else(denoiser.derivative)
    wide = denoiser.wide()
    x = x[:1].to(wide.device, wide.dtype)
    sample = x, times(time, x), to_device(take_rows(cond, slice(0, 1)), x.device)
    if asked in (Derivative.EXACT, Derivative.COMPILED):
        return wide.by(asked)
    ways = [_try_secant] if asked is Derivative.SECANT else [_try_secant, _try_exact]
    better = directions == "exact" or denoiser.dtype == torch.float64 or wide.device.type != "cpu"
    if better:
        ways.reverse()
    elif asked is Derivative.AUTO and _is_faster(wide, subset, directions):
        quotients, exact = (attempt(wide, subset, *sample) for attempt in ways)
        if isinstance(exact, Denoiser) and (
            not isinstance(quotients, Denoiser) or _agree(exact, quotients, subset, *sample)
        ):
            return exact
    reasons: list[str] = []
    for attempt in ways:
        found = attempt(wide, subset, *sample)
        if isinstance(found, Denoiser):
            if reasons and better and found.derivative is Derivative.SECANT:
                warn(f"{reasons[0]}; derivative='auto' takes secants.")
            return found
        reasons.append(found)
    instead = "derivative='exact'" if asked is Derivative.SECANT else instead
    raise ForwardModeError(
        "; ".join(reasons), f"Make the network follow the dtype of its input, or use {instead}."
    )


def _is_faster(denoiser: Denoiser, subset: Subset, directions: int | str) -> bool:
    """Whether exact derivatives take less time than secants, and little memory.

    Their directions are as large as the tensors with entries that move.
    """
    if isinstance(directions, str) or directions < _MANY:
        return False
    moved = sum(shape.numel() for shape in subset.shapes.values())
    return moved * directions <= _MOVED and any(
        isinstance(part, CONVOLUTIONS) for part in denoiser.module.modules()
    )


def _agree(exact: Denoiser, quotients: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond) -> bool:
    """Whether both ways give the same change: forward mode does not see what a network detaches."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(subset.size, 1, generator=generator, dtype=torch.float64)
    dx = torch.randn(1, *x.shape, generator=generator, dtype=torch.float64).to(x)
    one, other = (Push(net, subset, directions)(x + dx[0], dx, t, cond)[1] for net in (exact, quotients))
    return bool((one - other).norm() <= 1e-3 * other.norm())


def _try_exact(denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond) -> Denoiser | str:
    """The network with exact derivatives, or the reason why it has none."""
    exact = denoiser.by(Derivative.EXACT)
    try:
        Push(exact, subset, x.new_zeros(subset.size, 1))(x, torch.zeros_like(x)[None], t, cond)
    except ForwardModeError as error:
        return error.reason
    return exact


def _try_secant(denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond) -> Denoiser | str:
    """The network in float64 with secants, or the reason why it lacks that precision.

    Quotients with two step sizes agree, both for x and for the parameters, unless the network silently rounds
    to float32 inside. Its small differences are then noise.
    """
    try:
        double = denoiser.wide(torch.float64)
        generator = torch.Generator().manual_seed(0)
        dx, dtheta = (
            torch.randn(*shape, generator=generator, dtype=torch.float64).to(x.device)
            for shape in (x.shape, (1, subset.size))
        )
        x, movable = x.double() + dx, Movable(double, subset, dtheta)
        value = double(x, t, cond)

        def moved(step: float) -> Tensor:
            with movable.along(0, step) as params:
                return double.call(params, x, t, cond)

        precise = _steps_agree(
            lambda step: double(x + step * dx, t, cond), value, relative_size(x, dx[None])[0, 0]
        ) and _steps_agree(moved, value, movable.sizes[0])
    except Exception as error:  # user code may raise anything
        if is_out_of_memory(error):
            raise
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return f"{denoiser.name} cannot be called in float64 ({why})"
    if not precise:
        return f"{denoiser.name} rounds to less than float64 inside"
    return double.by(Derivative.SECANT)


def _steps_agree(f: Callable[[float], Tensor], value: Tensor, size: Tensor) -> bool:
    """Whether quotients with the standard step h and 10·h agree."""
    h = standard_step(size)
    near, far = ((f(step) - value) / step for step in (h, 10 * h))
    return bool((near - far).norm() <= 1e-3 * far.norm())


def push_through(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    dx: Tensor,
    derivative: Derivative = Derivative.EXACT,
) -> Tensor:
    """The changes ∂φ/∂x·δx_k, (K, B, *out), of a function φ of samples, one direction at a time.

    Args:
        function: φ, (B, *shape) -> (B, *out).
        x: The samples, (B, *shape).
        dx: δx, (K, B, *shape).
        derivative: EXACT, or SECANT in the dtype of x.
    """
    if derivative is Derivative.SECANT:
        return _differences(function, x, dx)[1]
    try:
        with plain_attention(), Workarounds():
            return torch.stack([jvp(function, (x,), (one,))[1] for one in dx])
    except (RuntimeError, NotImplementedError) as error:
        raise ForwardModeError(
            f"{getattr(function, '__name__', type(function).__name__)} cannot be differentiated in forward "
            f"mode: {str(error).splitlines()[0]}",
            "Use derivative='secant', or write it in differentiable operations of torch.",
        ) from error
