"""The only reverse loop: it walks the rows of a sampler's table and yields a frame a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .denoiser import Cond, Denoiser, require_finite
from .samplers import Step
from .streams import NoiseStreams


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
        state: what the rule carries.
    """

    index: int
    total: int
    first: int
    step: Step
    x: Tensor
    x0: Tensor
    state: Any

    @property
    def last(self) -> bool:
        """Whether the batch is finished."""
        return self.index == self.total - 1


class Rule(Protocol):
    """What rides along: it calls the network, and may differentiate it on the way."""

    def init(self, x: Tensor, cond: Cond) -> Any:
        """The state before the first step, from x_T (B, *shape)."""

    def step(self, state: Any, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """f(x, t), and the state after this row; z is the noise that the row adds, if any."""


@dataclass(frozen=True)
class Plain:
    """Sampling without uncertainty: one network call a step, the conditions its only state."""

    denoiser: Denoiser

    def init(self, x: Tensor, cond: Cond) -> Cond:
        """Keep the conditions."""
        return cond

    def step(self, state: Cond, row: Step, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Cond]:
        """f(x, t)."""
        return self.denoiser(x, t, state), state


def walk(
    rows: Sequence[Step], rule: Rule, x: Tensor, noise: NoiseStreams, cond: Cond, first: int = 0
) -> Iterator[Frame]:
    """Walk x_T down to x_0: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + c·z.

    Args:
        rows: the sampler's table, noisiest row first.
        rule: gives f(x, t) and carries its own state along.
        x: x_T, (B, *shape), in the dtype and on the device of the computation.
        noise: the streams of these B samples.
        cond: the conditions of these B samples.
        first: the index of the first of them.
    """
    state = rule.init(x, cond)
    history: list[Tensor] = []  # x̂0s, newest first
    keep = max(len(row.B) for row in rows)
    for index, row in enumerate(rows):
        t = torch.full((len(x),), row.time, device=x.device)
        z = noise.next().to(x) if row.c else None
        f, state = rule.step(state, row, x, t, z)
        x0 = row.clean(x, f)
        if row.clip:
            x0.clamp_(*row.clip)
        history = [x0, *history[: keep - 1]]
        x = row.A * x  # a tensor of its own: what follows may write to it
        for weight, prediction in zip(row.B, history, strict=False):
            x.add_(prediction, alpha=weight)
        if z is not None:
            x.add_(z, alpha=row.c)
        require_finite(f"step {index + 1} of {len(rows)} (time {row.time})", x, first)
        yield Frame(index, len(rows), first, row, x, x0, state)
