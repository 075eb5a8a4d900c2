"""J v: how the network's answer changes when its parameters and its state do.

`exact` is forward-mode differentiation, all directions in one batched pass: three to five network calls
per direction. `compiled` is the same, compiled for each batch size. `secant` is a difference quotient of a
float64 copy of the network: two to three float32 calls per direction, and no derivative.
`docs/performance.md` has the measurements; `prepare` chooses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.func
from torch import Tensor

from ..core.batch_size import is_out_of_memory
from ..core.conditions import Cond, take_rows, to_device
from ..network.denoiser import Denoiser, Params, times
from ..network.derivative import Derivative
from ..network.forward_mode import ForwardModeError, Workarounds, plain_attention
from ..network.probing import call
from ..network.subsets import Subset
from .finite_difference import Movable, Secant, difference, relative_size, standard_step

# their annotations do not know has_aux=False, or out_dims=(None, 0)
jvp: Any = torch.func.jvp
vmap: Any = torch.func.vmap

ROWS = 4096  # samples × directions per batched pass: more of them fall out of the cache
_COMPILED = 256  # networks and shapes that one process may compile


class Push:
    """f(x, t) and its change along K directions of (θ, x) jointly: ∂f/∂θ·δθ_k + ∂f/∂x·δx_k.

    Args:
        denoiser: the network, as `prepare` gives it: its `derivative` decides. AUTO is EXACT here, and SECANT
            takes a float64 copy if it is not one.
        subset: whose parameters move; None if none do.
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
            dx: δx, (K, B, *shape); None if it does not move.
            t: the time, (B,).
            cond: the conditions of the batch.
        """
        return self._push(x, dx, t, cond)


class Exact:
    """By forward-mode differentiation, as many directions per pass as stay in the cache."""

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
                _dual(self.denoiser, self.here, changes, x, steps, t, cond)
                for changes, steps in self._parts(len(x), dx)
            ]
        return parts[0][0], torch.cat([change for _, change in parts])

    def _parts(self, rows: int, dx: Tensor | None) -> Iterator[tuple[Params, Tensor | None]]:
        """The changes of θ and of x for some of the directions at a time."""
        count = len(dx if dx is not None else next(iter(self.tangents.values())))
        step = max(1, ROWS // rows)
        for first in range(0, count, step):
            some = slice(first, first + step)
            changes = {name: change[some] for name, change in self.tangents.items()}
            yield changes, None if dx is None else dx[some]


class Compiled(Exact):
    """The same by torch.compile, where parameters move; a score moves x alone, and once."""

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
            # one function for all networks: each network, and each shape, is compiled by itself
            with self.denoiser.forward_mode(), torch._dynamo.config.patch(cache_size_limit=_COMPILED):
                return _compiler()(self.denoiser, self.here, self.tangents, x, dx, t, cond)
        except ForwardModeError as error:
            raise ForwardModeError(
                f"{self.denoiser.name} could not be compiled: {str(error.__cause__).splitlines()[0]}. Use "
                "derivative='exact', which is the same without a compiler, or 'secant'."
            ) from error


_WAYS: dict[Derivative, Callable[[Denoiser, Subset | None, Tensor | None], Any]] = {
    Derivative.AUTO: Exact,
    Derivative.EXACT: Exact,
    Derivative.COMPILED: Compiled,
    Derivative.SECANT: Secant,
}


def _dual(
    denoiser: Denoiser,
    here: Params,
    changes: Params,
    x: Tensor,
    steps: Tensor | None,
    t: Tensor,
    cond: Cond | None,
) -> Any:
    """f at (here, x), and δf along the directions (changes, steps), all in one pass."""

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
    """The network as its changes are computed: its precision is chosen, and its `derivative` is not AUTO.

    AUTO is `secant` for a network in float32 or half precision on a CPU, where float64 is cheap. It is
    `exact` in float64, on other devices, and where all of Σ is pushed. A way that fails on a probe of one
    sample gives way to the other; what was asked for by name, or fails both ways, is an error.

    Args:
        denoiser: the network.
        subset: whose parameters move.
        derivative: what the caller asks for; AUTO leaves it to the denoiser.
        x: samples to probe the network with, (B, *shape).
        time: what the network receives.
        cond: the conditions of the samples.
        all_of_sigma: whether all m directions are pushed at once.
        instead: what the caller can do with a network that has no derivative, for the message.

    Raises:
        ForwardModeError: the network has no derivative, or not the one that was asked for.
    """
    asked = Derivative.parse(derivative).or_else(denoiser.derivative)
    wide = denoiser.wide()
    x = x[:1].to(wide.device, wide.dtype)
    own = to_device(take_rows(cond, slice(0, 1)), x.device)
    call(denoiser, x, times(time, x), own)  # what is wrong without derivatives says so itself
    if asked in (Derivative.EXACT, Derivative.COMPILED):
        return wide.by(asked)
    ways = [_try_secant] if asked is Derivative.SECANT else [_try_secant, _try_exact]
    if all_of_sigma or denoiser.dtype == torch.float64 or wide.device.type != "cpu":
        ways.reverse()
    reasons: list[str] = []
    for attempt in ways:
        found, reason = attempt(wide, subset, x, times(time, x), own)
        if found is not None:
            if reasons and attempt is _try_secant:
                warnings.warn(f"{reasons[0]}; derivative='auto' takes secants.", RuntimeWarning, stacklevel=4)
            return found
        reasons.append(reason)
    instead = "derivative='exact'" if asked is Derivative.SECANT else instead
    raise ForwardModeError(
        f"{'; '.join(reasons)}. Make the network follow the dtype of its input, or use {instead}."
    )


def _try_exact(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond
) -> tuple[Denoiser | None, str]:
    """The network with exact derivatives, or why it has none."""
    exact = denoiser.by(Derivative.EXACT)
    try:
        Push(exact, subset, x.new_zeros(subset.size, 1))(x, torch.zeros_like(x)[None], t, cond)
    except ForwardModeError as error:
        return None, str(error).split(". Use ")[0]
    return exact, ""


def _try_secant(
    denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond
) -> tuple[Denoiser | None, str]:
    """The network in float64 with secants, or why it does not have that precision.

    A network may round to float32 somewhere inside without a word, and its small differences are then noise:
    quotients with two step sizes tell, as x moves and as the parameters do.
    """
    try:
        generator = torch.Generator().manual_seed(0)
        double = denoiser.wide(torch.float64)
        moves = [
            torch.randn(*shape, generator=generator, dtype=torch.float64).to(x.device)
            for shape in (x.shape, (1, subset.size))
        ]
        inner, movable = x.double() + moves[0], Movable(double, subset, moves[1])
        value = double(inner, t, cond)
        h = standard_step(relative_size(inner, moves[0][None])[0, 0])
        k = standard_step(movable.sizes[0])
        good = _steps_agree(lambda step: double(inner + step * moves[0], t, cond), value, h) and _steps_agree(
            lambda step: double.call(movable.along(0, step), inner, t, cond), value, k
        )
    except Exception as error:  # the network is anybody's: it raises what it likes
        if is_out_of_memory(error):
            raise
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return None, f"{denoiser.name} cannot be called in float64 ({why})"
    if not good:
        return None, f"{denoiser.name} rounds to less than float64 inside"
    return double.by(Derivative.SECANT), ""


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
    """How a function φ of samples changes with them: ∂φ/∂x·δx_k, (K, B, *out), one direction at a time.

    Args:
        function: φ, (B, *shape) -> (B, *out).
        x: the samples, (B, *shape).
        dx: δx, (K, B, *shape).
        derivative: EXACT or SECANT, the latter in the dtype of x.
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
            f"{getattr(function, '__name__', type(function).__name__)} cannot be differentiated forward: "
            f"{str(error).splitlines()[0]}. Use derivative='secant', or write it in differentiable "
            "operations of torch."
        ) from error
