"""Products J·v: how the output of the network changes with its parameters and its state.

`exact` is forward-mode differentiation with all directions in one batched pass, at the cost of three to
five network calls per direction. `compiled` is the same, compiled per batch size. `secant` is a difference
quotient of a float64 copy of the network; it costs two to three float32 calls per direction and needs no
derivative.
`prepare` chooses; `docs/performance.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.func
from torch import Tensor

from ..core.conditions import Cond, take_rows, to_device
from ..core.memory import is_out_of_memory
from ..core.progress import warn
from ..network.denoiser import Denoiser, Params, times
from ..network.derivative import Derivative
from ..network.forward_mode import ForwardModeError, Workarounds, plain_attention
from ..network.probing import call
from ..network.subsets import Subset
from .finite_difference import Movable, Secant, difference, relative_size, standard_step

# the annotations of torch.func do not cover has_aux=False and out_dims=(None, 0)
jvp: Any = torch.func.jvp
vmap: Any = torch.func.vmap

ROWS = 4096  # samples × directions per batched pass: more would not fit into the cache
_COMPILED = 256  # the most networks and shapes that a process compiles


class Push:
    """f(x, t) and its change along K directions of (θ, x) jointly: ∂f/∂θ·δθ_k + ∂f/∂x·δx_k.

    Args:
        denoiser: the network as `prepare` returns it; its `derivative` decides. AUTO means EXACT here, and
            SECANT uses a float64 copy of the network.
        subset: the parameters that move; None if none do.
        directions: D, (m, K); None if no parameters move.
    """

    def __init__(
        self, denoiser: Denoiser, subset: Subset | None = None, directions: Tensor | None = None
    ) -> None:
        if denoiser.derivative is Derivative.SECANT:
            denoiser = denoiser.wide(torch.float64)
        D = None if directions is None else directions.T.to(denoiser.device, denoiser.dtype).contiguous()
        self._push = _WAYS[denoiser.derivative](denoiser, subset, D)

    def __call__(
        self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None = None
    ) -> tuple[Tensor, Tensor]:
        """f (B, *shape) and δf (K, B, *shape).

        Args:
            x: the state, (B, *shape).
            dx: δx, (K, B, *shape); None if the state does not move.
            t: the time, (B,).
            cond: the conditions of the batch.
        """
        return self._push(x, dx, t, cond)


class Exact:
    """Forward-mode differentiation, with as many directions per pass as fit into the cache."""

    def __init__(self, denoiser: Denoiser, subset: Subset | None, directions: Tensor | None) -> None:
        self.denoiser = denoiser
        self.here: dict[str, Tensor] = {}
        self.tangents: dict[str, Tensor] = {}
        if subset is not None and directions is not None:
            self.here = subset.params(denoiser)
            changes = subset.scatter(directions)
            self.tangents = {name: change.to(self.here[name].dtype) for name, change in changes.items()}

    def __call__(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        """f and δf; see `Push`."""
        with self.denoiser.forward_mode():
            parts = [
                _dual(self.denoiser, (self.here, x), directions, t, cond)
                for directions in self._parts(len(x), dx)
            ]
        return parts[0][0], torch.cat([change for _, change in parts])

    def _parts(self, rows: int, dx: Tensor | None) -> Iterator[tuple[Params, Tensor | None]]:
        """(δθ, δx) for some of the directions at a time."""
        count = len(dx if dx is not None else next(iter(self.tangents.values())))
        step = max(1, ROWS // rows)
        for first in range(0, count, step):
            some = slice(first, first + step)
            changes = {name: change[some] for name, change in self.tangents.items()}
            yield changes, None if dx is None else dx[some]


class Compiled(Exact):
    """`Exact` compiled by torch.compile, if parameters move.

    Scores move x alone, in a single call, which is not worth compiling.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset | None, directions: Tensor | None) -> None:
        super().__init__(denoiser, subset, directions)
        if not self.here or directions is None:
            return
        # torch.compile fails if only some of a layer's tensors carry tangents
        still = {name: value for name, value in denoiser.params.items() if name not in self.here}
        self.here |= still
        self.tangents |= {
            name: value.new_zeros(len(directions), *value.shape) for name, value in still.items()
        }

    def __call__(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        """f and δf; see `Push`."""
        if not self.here:
            return super().__call__(x, dx, t, cond)
        try:
            # one function for all networks; torch.compile specializes it per network and shape
            with self.denoiser.forward_mode(), torch._dynamo.config.patch(cache_size_limit=_COMPILED):
                return _compiler()(self.denoiser, (self.here, x), (self.tangents, dx), t, cond)
        except ForwardModeError as error:
            raise ForwardModeError(
                f"{self.denoiser.name} could not be compiled: {str(error.__cause__).splitlines()[0]}",
                "Use derivative='exact', which gives the same numbers without a compiler, or 'secant'.",
            ) from error


_WAYS: dict[Derivative, Callable[[Denoiser, Subset | None, Tensor | None], Any]] = {
    Derivative.AUTO: Exact,
    Derivative.EXACT: Exact,
    Derivative.COMPILED: Compiled,
    Derivative.SECANT: Secant,
}


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
    all_of_sigma: bool = False,
    instead: str = "rule='monte_carlo', which needs no derivative",
) -> Denoiser:
    """The network in the precision that its derivatives need, with a `derivative` other than AUTO.

    AUTO becomes `secant` for a network in float32 or half precision on a CPU, where float64 is cheap. It
    becomes `exact` in float64, on other devices, and if all of Σ is pushed. If the preferred way fails on one
    sample, the other one is the fallback. A way that is requested by name has no fallback.

    Args:
        denoiser: the network.
        subset: the parameters that move.
        derivative: the request of the caller; AUTO takes the setting of the denoiser.
        x: samples to try the network on, (B, *shape).
        time: the time that the network receives.
        cond: the conditions of the samples.
        all_of_sigma: whether all m directions are pushed at once.
        instead: an alternative for a network without derivatives, for the error message.

    Raises:
        ForwardModeError: the network has no derivative, or not the requested one.
    """
    asked = Derivative.parse(derivative).or_else(denoiser.derivative)
    wide = denoiser.wide()
    x = x[:1].to(wide.device, wide.dtype)
    trial = _Trial(subset, x, times(time, x), to_device(take_rows(cond, slice(0, 1)), x.device))
    call(denoiser, x, trial.t, trial.cond)  # explains failures that are not about derivatives
    if asked in (Derivative.EXACT, Derivative.COMPILED):
        return wide.by(asked)
    ways = [trial.secant] if asked is Derivative.SECANT else [trial.secant, trial.exact]
    if all_of_sigma or denoiser.dtype == torch.float64 or wide.device.type != "cpu":
        ways.reverse()
    reasons: list[str] = []
    for attempt in ways:
        found, reason = attempt(wide)
        if found is not None:
            if reasons and found.derivative is Derivative.SECANT:
                warn(f"{reasons[0]}; derivative='auto' takes secants.")
            return found
        reasons.append(reason)
    instead = "derivative='exact'" if asked is Derivative.SECANT else instead
    raise ForwardModeError(
        "; ".join(reasons), f"Make the network follow the dtype of its input, or use {instead}."
    )


@dataclass(frozen=True)
class _Trial:
    """One sample on which each way to differentiate is tried.

    Attributes:
        subset: the parameters that move.
        x: the sample, (1, *shape).
        t: its time, (1,).
        cond: its conditions.
    """

    subset: Subset
    x: Tensor
    t: Tensor
    cond: Cond

    def exact(self, denoiser: Denoiser) -> tuple[Denoiser | None, str]:
        """The network with exact derivatives, or None and the reason why it has none."""
        exact = denoiser.by(Derivative.EXACT)
        try:
            push = Push(exact, self.subset, self.x.new_zeros(self.subset.size, 1))
            push(self.x, torch.zeros_like(self.x)[None], self.t, self.cond)
        except ForwardModeError as error:
            return None, error.reason
        return exact, ""

    def secant(self, denoiser: Denoiser) -> tuple[Denoiser | None, str]:
        """The network in float64 with secants, or None and the reason why it lacks that precision."""
        try:
            double = denoiser.wide(torch.float64)
            precise = self._is_precise(double)
        except Exception as error:  # user code may raise anything
            if is_out_of_memory(error):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            return None, f"{denoiser.name} cannot be called in float64 ({why})"
        if not precise:
            return None, f"{denoiser.name} rounds to less than float64 inside"
        return double.by(Derivative.SECANT), ""

    def _is_precise(self, double: Denoiser) -> bool:
        """Whether quotients with two step sizes agree, as x moves and as the parameters move.

        They differ if the network silently rounds to float32 inside: its small differences are noise then.
        """
        generator = torch.Generator().manual_seed(0)
        dx, dtheta = (
            torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.x.device)
            for shape in (self.x.shape, (1, self.subset.size))
        )
        x, movable = self.x.double() + dx, Movable(double, self.subset, dtheta)
        value = double(x, self.t, self.cond)
        h = standard_step(relative_size(x, dx[None])[0, 0])
        k = standard_step(movable.sizes[0])

        def moved(step: float) -> Tensor:
            with movable.along(0, step) as params:
                return double.call(params, x, self.t, self.cond)

        return _steps_agree(lambda step: double(x + step * dx, self.t, self.cond), value, h) and _steps_agree(
            moved, value, k
        )


def _steps_agree(f: Callable[[float], Tensor], value: Tensor, h: float) -> bool:
    """Whether quotients with the steps h and 10·h agree."""
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
        x: the samples, (B, *shape).
        dx: δx, (K, B, *shape).
        derivative: EXACT, or SECANT in the dtype of x.
    """
    if derivative is Derivative.SECANT:
        value, sizes = function(x), relative_size(x, dx)
        pairs = zip(dx, sizes, strict=True)
        return torch.stack([difference(function, x, one, value, size) for one, size in pairs])
    try:
        with plain_attention(), Workarounds():
            return torch.stack([jvp(function, (x,), (one,))[1] for one in dx])
    except (RuntimeError, NotImplementedError) as error:
        raise ForwardModeError(
            f"{getattr(function, '__name__', type(function).__name__)} cannot be differentiated in forward "
            f"mode: {str(error).splitlines()[0]}",
            "Use derivative='secant', or write it in differentiable operations of torch.",
        ) from error
