"""The only reverse loop, which applies the rows of a table and yields one frame per step, and its rules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..core.nonfinite import fill_rows, find_nonfinite
from ..core.registry import Registry
from ..diffusion.steps import Step, Steps
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, times
from ..results.result import Spread


@dataclass(frozen=True)
class Frame:
    """One step of one batch.

    Attributes:
        index: Which step, from 0.
        total: Number of steps.
        first: Index of the batch's first sample.
        step: The row that was walked.
        x: The state after the step, (B, *shape); on the last frame, the samples.
        x0: The clean samples that were predicted in this step, clipped, (B, *shape).
        trace: The trace of the state's epistemic covariance after the step, (B,); None without a rule, NaN
            where a sample is lost.
        spread: The epistemic spread of the samples, on the last frame of a batch; zeros where one is lost.
        lost: Which samples have had NaN or infinity so far, (B,) bool; None if none has. Their x and x0 are
            NaN.
    """

    index: int
    total: int
    first: int
    step: Step
    x: Tensor
    x0: Tensor
    trace: Tensor | None = None
    spread: Spread | None = None
    lost: Tensor | None = None

    @property
    def name(self) -> str:
        """The name of the step, for messages."""
        return f"step {self.index + 1} of {self.total} (time {self.step.time})"

    @property
    def last(self) -> bool:
        """Whether the batch is finished."""
        return self.index == self.total - 1


class Ingredients(NamedTuple):
    """The inputs of `Rule.build`.

    Attributes:
        denoiser: The network, prepared for derivatives if the rule needs them.
        subset: The uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ.
        steps: The sampler's table.
        driver: The network in its own precision.
        exact: Whether D Dᵀ is Σ itself.
        covariance: Whether full covariances are requested.
    """

    denoiser: Denoiser
    subset: Subset
    directions: Tensor
    steps: Steps
    driver: Denoiser
    exact: bool = False
    covariance: bool = False


class Rule(ABC):
    """How uncertainty is propagated along a trajectory: a rule calls the network, and may differentiate it.

    A rule keeps everything that it knows about a batch in a state, and passes the state from step to step. A
    class that is registered in `RULES` is built from a posterior by `build`, and has a name and a summary.
    """

    #: what users call it; by default, the name of the class
    name: ClassVar[str] = ""
    #: one line for help texts and tables
    summary: ClassVar[str] = ""
    #: whether it differentiates the network
    needs_derivatives: ClassVar[bool] = True
    #: whether its own f(x, t) moves the samples of a network in half precision; if not, the network does
    drives_itself: ClassVar[bool] = False
    #: the default score if the posterior is calibrated; `trace` otherwise
    calibrated_score: ClassVar[str] = "trace"
    #: noise draws per sample that `finish` takes
    extra_noise: int = 0
    #: whether it keeps the deviations of the samples along each direction, for covariances and most scores
    keeps_directions: bool = False
    #: whether the spread has a full covariance without deviations
    keeps_covariance: bool = False

    def __init_subclass__(cls) -> None:
        cls.name = cls.name or cls.__name__

    @classmethod
    def build(cls, given: Ingredients) -> Rule:
        """Make the rule for a posterior."""
        raise NotImplementedError(f"{cls.__name__} cannot be built by name; give an instance of it as rule=.")

    @classmethod
    def default_score(cls, calibrated: bool) -> str:
        """The score that is used if none is requested, the same in every function and command."""
        return cls.calibrated_score if calibrated else "trace"

    @abstractmethod
    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Any:
        """Make the state before the first step.

        Args:
            x: x_T, (B, *shape).
            cond: The conditions of the batch.
            history: Number of predictions x̂0 that a row of the sampler uses.
            noise: The noise streams of the batch. They belong to the sampler: a rule that draws noise between
                `init` and `finish` takes `noise.beside(...)`.
        """

    @abstractmethod
    def step(self, state: Any, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """Compute f(x, t), and the state after this row; z is the noise that the row adds, if any."""

    def trace(self, state: Any) -> Tensor | None:
        """The trace of the epistemic covariance that the state represents, (B,), if it is known."""
        return None

    def finish(self, state: Any, x: Tensor, noise: NoiseSource) -> Spread | None:
        """Compute the spread of the samples x = x_0, (B, *shape)."""
        return None

    def map_state(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """Apply a function to every tensor (..., B, *shape) of the state: by default, to those in tuples.

        The loop looks for non-finite values this way, and replaces those of lost samples.
        """
        if isinstance(state, Tensor):
            return function(state)
        if not isinstance(state, tuple):
            return state
        values = (self.map_state(value, function) for value in state)
        return type(state)(*values) if hasattr(state, "_fields") else tuple(values)


#: the rules by name
RULES: Registry[type[Rule]] = Registry("rule")


class Plain(Rule):
    """Sampling without uncertainty: one network call per step, with the conditions as its only state.

    Args:
        denoiser: The network.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Cond:
        """Keep the conditions."""
        return cond

    def step(self, state: Cond, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Cond]:
        """f(x, t)."""
        return self.denoiser(x, t, state), state


def walk(
    rows: Sequence[Step],
    rule: Rule,
    x: Tensor,
    noise: NoiseSource,
    cond: Cond,
    first: int = 0,
    driver: Denoiser | None = None,
) -> Iterator[Frame]:
    """Run the reverse loop from x_T to x_0: apply every row to the state, and yield a frame per row.

    A learned noise scale (`Step.noise`) is taken at the trained parameters and the realized state: the
    epistemic spread is conditional on it.

    A sample with a non-finite value in f, in x or in the rule's state is lost at that step. It continues as
    zeros, so the other samples keep their noise and their place in the batch.

    Args:
        rows: The sampler's table, noisiest row first.
        rule: Computes f(x, t) and carries its state along.
        x: x_T, (B, *shape), in the dtype and on the device of the computation.
        noise: The noise streams of these B samples.
        cond: The conditions of these B samples.
        first: Index of the first of them.
        driver: The network in half precision, whose f(x, t) moves the samples instead of the rule's: the rule
            differentiates a wider copy.
    """
    history = history_length(rows)
    state = rule.init(x, cond, history, noise)
    predictions: list[Tensor] = []  # x̂0s, newest first
    lost: Tensor | None = None
    for index, row in enumerate(rows):
        t = times(row.level.time, x)
        z = noise.next().to(x) if row.c else None
        if z is not None and row.noise is not None:
            # the scale that the trained network gives here, for every model alike
            z = z * row.noise(x, t, cond)
        f, state = rule.step(state, row, x, t, z)
        if driver is not None:
            f = driver(x, t, cond)
        clean = row.clean(x, f)
        x0 = row.limit(clean)
        predictions = [x0, *predictions][:history]
        x = row.advance(x, predictions, z, clean)
        bad = _find_lost(rule, state, x, clean if row.clip is not None else None)
        if bad is not None:
            lost = bad if lost is None else lost | bad
            clear = partial(fill_rows, lost=lost, number=0.0, axes=x.ndim)
            x, predictions = clear(x), [clear(prediction) for prediction in predictions]
            state = rule.map_state(state, clear)
        spread = rule.finish(state, x, noise) if index == len(rows) - 1 else None
        seen, seen0, trace = x, x0, rule.trace(state)
        if lost is not None:
            seen, seen0 = (fill_rows(value, lost, math.nan, x.ndim) for value in (x, x0))
            trace = None if trace is None else fill_rows(trace, lost, math.nan, 1)
        yield Frame(index, len(rows), first, row, seen, seen0, trace, spread, lost)


def history_length(rows: Sequence[Step]) -> int:
    """Number of predictions x̂0 that the rows of a sampler use: 1 for one-step samplers."""
    return max(len(row.B) for row in rows)


def _find_lost(rule: Rule, state: Any, x: Tensor, clean: Tensor | None) -> Tensor | None:
    """Find the samples with non-finite values; a clip hides an infinite f from x, but not from `clean`."""
    found = [x] if clean is None else [x, clean]

    def add(value: Tensor) -> Tensor:
        found.append(value)
        return value

    rule.map_state(state, add)
    return find_nonfinite(found, x.ndim)
