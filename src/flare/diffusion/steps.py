"""The table of a sampler: one row per step, for sampling and for the propagation of uncertainty.

Every row is affine in the state and in the predicted clean samples:

    x̂0 = clip(p·x + q·f(x, t))          x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(p·x + q·f) + c·z

p and q depend on what the network predicts; A, B, R and c depend on the noise levels (α, σ) between which the
step goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from .clipping import Bounds, Threshold
from .parameterizations import Prediction, check_level, coefficients
from .schedules import Level, Schedule

Noise = Callable[[Tensor, Tensor, Any], Tensor]  # (x, t, cond) -> the learned factor of c·z, shaped like x


@dataclass(frozen=True)
class Step:
    """One row, ready to run: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(p·x + q·f) + c·z.

    >>> row = flare.samplers.ddim(schedule, 5).rows("epsilon")[0]
    >>> row.time, row.c
    (599, 0.0)

    Attributes:
        time: the time that the network receives.
        p: coefficient of x in the predicted clean sample.
        q: coefficient of f in the predicted clean sample.
        A: coefficient of the state.
        B: coefficients of the predicted clean samples, newest first.
        c: coefficient of the noise.
        clip: the range of x̂0, a `Threshold`, or None.
        raw: R, coefficient of the predicted clean sample before clipping.
        noise: a learned factor of c·z, as a function of (x, t, cond); None for 1.
    """

    time: int | float
    p: float
    q: float
    A: float
    B: tuple[float, ...]
    c: float
    clip: Bounds | Threshold | None
    raw: float = 0.0
    noise: Noise | None = None

    @property
    def linear(self) -> tuple[float, float]:
        """(a, b) with x' = a·x + b·f + c·z, for a row with one prediction and no clipping."""
        return self._linear(1.0)

    def linear_at(self, clean: Tensor) -> tuple[Any, Any]:
        """(a, b) with δx' = a·δx + b·δf, for a row with one prediction and no `Threshold`.

        Both are numbers without a clip, and tensors (B, *shape) with one.
        """
        return self._linear(1.0 if self.clip is None else self._inside(clean))

    def _linear(self, inside: Any) -> tuple[Any, Any]:
        weight = self.B[0] * inside + self.raw
        return self.A + weight * self.p, weight * self.q

    def _inside(self, clean: Tensor) -> Tensor:
        """1 where a clean sample is within the range, 0 where it is clipped."""
        low, high = cast("Bounds", self.clip)
        return ((clean > low) & (clean < high)).to(clean.dtype)

    def clean(self, x: Tensor, f: Tensor) -> Tensor:
        """The predicted clean sample before clipping, p·x + q·f."""
        return self.q * f if self.p == 0 else (self.p * x).add_(f, alpha=self.q)

    def limit(self, clean: Tensor) -> Tensor:
        """x̂0 = clip(clean), (B, *shape)."""
        if self.clip is None:
            return clean
        return self.clip(clean) if isinstance(self.clip, Threshold) else clean.clamp(*self.clip)

    def limit_change(self, clean: Tensor, change: Tensor) -> Tensor:
        """δx̂0 (K, B, *shape) for changes of the clean sample (B, *shape); a clipped entry does not change."""
        if self.clip is None:
            return change
        if isinstance(self.clip, Threshold):
            return self.clip.change(clean, change)
        return change * self._inside(clean)

    def advance(
        self, x: Tensor, predictions: Sequence[Tensor], z: Tensor | None = None, clean: Tensor | None = None
    ) -> Tensor:
        """A·x + Σ_j B[j]·x̂0_{k−j} + R·clean + c·z, with the predictions newest first."""
        out = self.A * x
        for weight, prediction in zip(self.B, predictions, strict=False):
            out.add_(prediction, alpha=weight)
        if self.raw and clean is not None:
            out.add_(clean, alpha=self.raw)
        return out if z is None else out.add_(z, alpha=self.c)


@dataclass(frozen=True)
class Transition:
    """A step from one noise level to another; p and q follow once the prediction of the network is known.

    Attributes:
        level: the level at which the network is called.
        A: see `Step`.
        B: see `Step`.
        c: see `Step`.
        clip: see `Step`.
        raw: see `Step`.
        noise: see `Step`.
    """

    level: Level
    A: float
    B: tuple[float, ...]
    c: float
    clip: Bounds | Threshold | None
    raw: float = 0.0
    noise: Noise | None = None


@dataclass(frozen=True)
class Steps:
    """The table of a sampler: `len(steps)` network calls, the noisiest first.

    Attributes:
        name: the name of the sampler.
        schedule: the schedule whose levels it walks.
        transitions: the steps.
        start: x_T is standard normal noise times this number.
    """

    name: str
    schedule: Schedule
    transitions: tuple[Transition, ...]
    start: float = 1.0

    def rows(self, prediction: Prediction) -> list[Step]:
        """The rows for a network with this prediction, such as epsilon."""
        for s in self.transitions:
            check_level(prediction, s.level.time, s.level.alpha, s.level.sigma)
        return [
            Step(
                s.level.time,
                *coefficients(prediction, s.level.alpha, s.level.sigma),
                A=s.A,
                B=s.B,
                c=s.c,
                clip=s.clip,
                raw=s.raw,
                noise=s.noise,
            )
            for s in self.transitions
        ]

    def __len__(self) -> int:
        return len(self.transitions)

    def __repr__(self) -> str:
        return f"Steps({self.name}, {len(self)} steps)"
