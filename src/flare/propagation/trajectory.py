"""The only reverse loop: it walks the rows of a sampler's table and yields a frame a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..core.conditions import Cond
from ..core.noise_streams import NoiseStreams
from ..core.nonfinite import carried, emptied, fill_rows, find_nonfinite
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


class Rule(Protocol):
    """What rides along a trajectory: it calls the network, and may differentiate it on the way."""

    @property
    def draws(self) -> int:
        """How many noises a sample `finish` takes."""

    @property
    def keeps_directions(self) -> bool:
        """Whether the spread has deviations, for covariances and all scores but the trace."""

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> Any:
        """The state before the first step, from x_T (B, *shape); rows look back on `keep` predictions.

        A rule that draws on the way takes noise.beside(...): that of the steps is the sampler's.
        """

    def step(self, state: Any, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """f(x, t), and the state after this row; z is the noise that the row adds, if any."""

    def trace(self, state: Any) -> Tensor | None:
        """The trace of the epistemic covariance that the state stands for, (B,)."""

    def finish(self, state: Any, x: Tensor, noise: NoiseStreams) -> Spread | None:
        """The spread of the samples x = x_0, (B, *shape)."""


@dataclass(frozen=True)
class Plain:
    """Sampling without uncertainty: one network call a step, the conditions its only state."""

    denoiser: Denoiser
    draws: int = 0
    keeps_directions: bool = False

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> Cond:
        """Keep the conditions."""
        return cond

    def step(self, state: Cond, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Cond]:
        """f(x, t)."""
        return self.denoiser(x, t, state), state

    def trace(self, state: Cond) -> None:
        """Nothing is uncertain."""

    def finish(self, state: Cond, x: Tensor, noise: NoiseStreams) -> Spread | None:
        """Nothing is uncertain."""
        return None


@dataclass(frozen=True)
class Driven:
    """A rule beside a trajectory that another denoiser drives: the same network in its own precision.

    Attributes:
        denoiser: whose f(x, t) moves the samples.
        rule: what rides along.
    """

    denoiser: Denoiser
    rule: Rule

    @property
    def draws(self) -> int:
        """Those of the rule."""
        return self.rule.draws

    @property
    def keeps_directions(self) -> bool:
        """Whether the rule does."""
        return self.rule.keeps_directions

    def init(self, x: Tensor, cond: Cond, keep: int, noise: NoiseStreams) -> tuple[Any, Cond]:
        """The state of the rule, and the conditions."""
        return self.rule.init(x, cond, keep, noise), cond

    def step(
        self, state: tuple[Any, Cond], row: Step, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, tuple[Any, Cond]]:
        """f(x, t) of the driver, and the state of the rule after the row."""
        inner, cond = state
        _, inner = self.rule.step(inner, row, x, t, z)
        return self.denoiser(x, t, cond), (inner, cond)

    def trace(self, state: tuple[Any, Cond]) -> Tensor | None:
        """That of the rule."""
        return self.rule.trace(state[0])

    def finish(self, state: tuple[Any, Cond], x: Tensor, noise: NoiseStreams) -> Spread | None:
        """That of the rule."""
        return self.rule.finish(state[0], x, noise)


def walk(
    rows: Sequence[Step], rule: Rule, x: Tensor, noise: NoiseStreams, cond: Cond, first: int = 0
) -> Iterator[Frame]:
    """Walk x_T down to x_0: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + c·z.

    A noise scale that is learned (`Step.noise`) is taken at the trained parameters and the realized state:
    the epistemic spread is conditional on it.

    A sample with NaN or infinity in f, in x or in what the rule carries along is lost at that step. It goes
    on as zeros, so that the others keep their noise and their place in the batch.

    Args:
        rows: the sampler's table, noisiest row first.
        rule: gives f(x, t) and carries its own state along.
        x: x_T, (B, *shape), in the dtype and on the device of the computation.
        noise: the streams of these B samples.
        cond: the conditions of these B samples.
        first: the index of the first of them.
    """
    keep = max(len(row.B) for row in rows)
    state = rule.init(x, cond, keep, noise)
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
        predictions = [x0, *predictions][:keep]
        x = row.advance(x, predictions, z, clean)
        # a clip hides an infinite f from x
        hidden = [clean] if row.clip is not None else []
        bad = find_nonfinite([x, *hidden, *carried(state, x.shape)], x.ndim)
        if bad is not None:
            lost = bad if lost is None else lost | bad
            x, state, predictions = emptied((x, state, predictions), lost, x.shape)
        spread = rule.finish(state, x, noise) if index == len(rows) - 1 else None
        seen, seen0, trace = x, x0, rule.trace(state)
        if lost is not None:
            seen, seen0 = (fill_rows(value, lost, math.nan, x.ndim) for value in (x, x0))
            trace = None if trace is None else fill_rows(trace, lost, math.nan, 1)
        yield Frame(index, len(rows), first, row, seen, seen0, trace, spread, lost)
