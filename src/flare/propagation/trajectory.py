"""The only reverse loop: it walks the rows of a sampler's table and yields one frame per step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ..core.conditions import Cond
from ..core.noise_streams import NoiseSource
from ..core.nonfinite import fill_rows, find_nonfinite
from ..diffusion.samplers import Step
from ..network.denoiser import Denoiser, times
from ..results.spread import Spread


@dataclass(frozen=True)
class Frame:
    """One step of one batch.

    Attributes:
        index: which step, from 0.
        total: how many steps.
        first: the index of the batch's first sample.
        step: the row that was walked.
        x: the state after the step, (B, *shape); on the last frame, the samples.
        x0: the clean samples that were predicted in this step, clipped, (B, *shape).
        trace: the trace of the state's epistemic covariance after the step, (B,); None without a rule, NaN
            where a sample is lost.
        spread: the epistemic spread of the samples, on the last frame of a batch; zeros where one is lost.
        lost: which samples have had NaN or infinity so far, (B,) bool; None if none has. Their x and x0 are
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
        """Which step, for messages."""
        return f"step {self.index + 1} of {self.total} (time {self.step.time})"

    @property
    def last(self) -> bool:
        """Whether the batch is finished."""
        return self.index == self.total - 1


class Rule(ABC):
    """How uncertainty is propagated along a trajectory: a rule calls the network, and may differentiate it.

    A rule keeps all that it knows of a batch in a state, which it passes from step to step.
    """

    #: noise draws per sample that `finish` takes
    extra_noise: int = 0
    #: whether it keeps the deviations of the samples along each direction, for covariances and most scores
    keeps_directions: bool = False
    #: whether the spread has a full covariance without deviations
    keeps_covariance: bool = False

    @abstractmethod
    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Any:
        """Make the state before the first step.

        Args:
            x: x_T, (B, *shape).
            cond: the conditions of the batch.
            history: how many predictions x̂0 a row of the sampler uses.
            noise: the streams of the batch. They belong to the sampler: a rule that draws noise between
                `init` and `finish` takes `noise.beside(...)`.
        """

    @abstractmethod
    def step(self, state: Any, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """Compute f(x, t), and the state after this row; z is the noise that the row adds, if any."""

    def trace(self, state: Any) -> Tensor | None:
        """The trace of the epistemic covariance that the state stands for, (B,), if it is known."""
        return None

    def finish(self, state: Any, x: Tensor, noise: NoiseSource) -> Spread | None:
        """Compute the spread of the samples x = x_0, (B, *shape)."""
        return None

    def map_state(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """Apply a function to every tensor (..., B, *shape) of the state; to none by default.

        The loop looks for non-finite values this way, and replaces those of lost samples.
        """
        return state


@dataclass(frozen=True)
class Plain(Rule):
    """Sampling without uncertainty: one network call per step, with the conditions as its only state."""

    denoiser: Denoiser

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> Cond:
        """Keep the conditions."""
        return cond

    def step(self, state: Cond, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Cond]:
        """f(x, t)."""
        return self.denoiser(x, t, state), state


class Driven(Rule):
    """A rule beside samples that the network moves in its own, half precision.

    The rule differentiates a wider copy of the network. Its own f(x, t) is not used.

    Args:
        denoiser: the network in half precision.
        rule: computes the uncertainty.
    """

    def __init__(self, denoiser: Denoiser, rule: Rule) -> None:
        self.denoiser, self.rule = denoiser, rule
        self.extra_noise, self.keeps_directions = rule.extra_noise, rule.keeps_directions
        self.keeps_covariance = rule.keeps_covariance

    def init(self, x: Tensor, cond: Cond, history: int, noise: NoiseSource) -> tuple[Any, Cond]:
        """The state of the rule, and the conditions."""
        return self.rule.init(x, cond, history, noise), cond

    def step(
        self, state: tuple[Any, Cond], row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, tuple[Any, Cond]]:
        """f(x, t) of the driver, and the state of the rule after the row."""
        inner, cond = state
        _, inner = self.rule.step(inner, row, x, t, z)
        return self.denoiser(x, t, cond), (inner, cond)

    def trace(self, state: tuple[Any, Cond]) -> Tensor | None:
        """The trace of the rule's state."""
        return self.rule.trace(state[0])

    def finish(self, state: tuple[Any, Cond], x: Tensor, noise: NoiseSource) -> Spread | None:
        """Compute the rule's spread."""
        return self.rule.finish(state[0], x, noise)

    def map_state(self, state: tuple[Any, Cond], function: Callable[[Tensor], Tensor]) -> tuple[Any, Cond]:
        """Map the state of the rule."""
        return self.rule.map_state(state[0], function), state[1]


def walk(
    rows: Sequence[Step], rule: Rule, x: Tensor, noise: NoiseSource, cond: Cond, first: int = 0
) -> Iterator[Frame]:
    """Run the reverse loop from x_T to x_0: apply every row to the state, and yield a frame per row.

    A learned noise scale (`Step.noise`) is taken at the trained parameters and the realized state: the
    epistemic spread is conditional on it.

    A sample with a non-finite value in f, in x or in the rule's state is lost at that step. It continues as
    zeros, so that the other samples keep their noise and their place in the batch.

    Args:
        rows: the sampler's table, noisiest row first.
        rule: gives f(x, t) and carries its own state along.
        x: x_T, (B, *shape), in the dtype and on the device of the computation.
        noise: the streams of these B samples.
        cond: the conditions of these B samples.
        first: the index of the first of them.
    """
    history = history_length(rows)
    state = rule.init(x, cond, history, noise)
    predictions: list[Tensor] = []  # x̂0s, newest first
    lost: Tensor | None = None
    for index, row in enumerate(rows):
        t = times(row.time, x)
        z = noise.next().to(x) if row.c else None
        if z is not None and row.noise is not None:
            # the scale that the trained network gives here, for every model alike
            z = z * row.noise(x, t, cond)
        f, state = rule.step(state, row, x, t, z)
        clean = row.clean(x, f)
        x0 = row.limit(clean)
        predictions = [x0, *predictions][:history]
        x = row.advance(x, predictions, z, clean)
        # a clip hides an infinite f from x
        bad = find_nonfinite([x, *([clean] if row.clip is not None else []), *_tensors(rule, state)], x.ndim)
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
    """How many predictions x̂0 the rows of a sampler use: 1 for one-step samplers."""
    return max(len(row.B) for row in rows)


def _tensors(rule: Rule, state: Any) -> list[Tensor]:
    """The tensors (..., B, *shape) of a rule's state."""
    found: list[Tensor] = []

    def add(value: Tensor) -> Tensor:
        found.append(value)
        return value

    rule.map_state(state, add)
    return found
