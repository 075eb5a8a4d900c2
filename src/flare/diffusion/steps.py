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

import torch
from torch import Tensor

from .levels import Level, Schedule
from .parameterizations import Prediction, check_level, coefficients

Bounds = tuple[float, float]
Noise = Callable[[Tensor, Tensor, Any], Tensor]  # (x, t, cond) -> the learned factor of c·z, shaped like x
# the annotations of torch.func do not cover has_aux=False
jvp: Any = torch.func.jvp


@dataclass(frozen=True)
class Threshold:
    """Dynamic thresholding: clip(x̂0, −s, s)/s with s the `ratio` quantile of |x̂0| over a sample.

    s is clamped to [1, maximum]; with a maximum below 1, s = maximum. Between these limits s changes with x̂0:
    the derivative is δx̂0/s − x̂0·δs/s² where |x̂0| < s, and 0 elsewhere.

    Attributes:
        ratio: The quantile, in [0, 1].
        maximum: The largest s.
    """

    ratio: float = 0.995
    maximum: float = 1.0

    def __call__(self, clean: Tensor) -> Tensor:
        """Threshold the samples (B, *shape)."""
        flat = clean.flatten(1)
        s = torch.quantile(flat.abs(), self.ratio, dim=1, keepdim=True).clamp(1, self.maximum)
        return (torch.maximum(torch.minimum(flat, s), -s) / s).view_as(clean)

    def change(self, clean: Tensor, change: Tensor) -> Tensor:
        """The changes (K, B, *shape) of the thresholded samples along changes of the clean sample."""
        return torch.func.vmap(lambda one: jvp(self, (clean,), (one,))[1])(change)


Clip = float | Bounds | Threshold | None


def check_clip(clip: Clip) -> Bounds | Threshold | None:
    """Return a clip as a range (low, high), a `Threshold` or None; a number r means [−r, r]."""
    if clip is None or isinstance(clip, Threshold):
        return clip
    low, high = (-clip, clip) if isinstance(clip, (int, float)) else clip
    if not low < high:
        raise ValueError(
            f"clip must be a positive number r for [-r, r], or a pair (low, high), got {clip!r}."
        )
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A step from one noise level to another, for a network with any prediction.

    Attributes:
        level: The level at which the network is called.
        A: Coefficient of the state.
        B: Coefficients of the predicted clean samples, newest first.
        c: Coefficient of the noise.
        clip: The range of x̂0, a `Threshold`, or None.
        raw: R, the coefficient of the predicted clean sample before clipping.
        noise: A learned factor of c·z, as a function of (x, t, cond); None for 1.
    """

    level: Level
    A: float
    B: tuple[float, ...]
    c: float = 0.0
    clip: Bounds | Threshold | None = None
    raw: float = 0.0
    noise: Noise | None = None


@dataclass(frozen=True, kw_only=True)
class Step(Transition):
    """A row that is ready to run: x̂0 = clip(p·x + q·f), x' = A·x + Σ_j B[j]·x̂0_{k−j} + R·(p·x + q·f) + c·z.

    >>> row = flare.samplers.ddim(schedule, 5).rows("epsilon")[0]
    >>> row.time, row.c
    (599, 0.0)

    Attributes:
        p: Coefficient of x in the predicted clean sample.
        q: Coefficient of f in the predicted clean sample.
    """

    p: float
    q: float

    @property
    def time(self) -> int | float:
        """The time that the network receives."""
        return self.level.time

    @property
    def linear(self) -> tuple[float, float]:
        """(a, b) with x' = a·x + b·f + c·z, for a row with one prediction and no clipping."""
        return self.linear_at(None)

    def linear_at(self, clean: Tensor | None) -> tuple[Any, Any]:
        """(a, b) with δx' = a·δx + b·δf, for a row with one prediction and no `Threshold`.

        Both are numbers without a clip, and tensors (B, *shape) with one.
        """
        inside = 1.0 if clean is None or self.clip is None else self._inside(clean)
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
class Steps:
    """The table of a sampler: `len(steps)` network calls, the noisiest first.

    Attributes:
        name: The name of the sampler.
        schedule: The schedule that provides the levels.
        transitions: The steps.
        start: x_T is standard normal noise times this number.
    """

    name: str
    schedule: Schedule
    transitions: tuple[Transition, ...]
    start: float = 1.0

    def rows(self, prediction: Prediction) -> list[Step]:
        """The rows for a network with this prediction, such as epsilon."""
        rows = []
        for transition in self.transitions:
            level = transition.level
            check_level(prediction, level.time, level.alpha, level.sigma)
            p, q = coefficients(prediction, level.alpha, level.sigma)
            rows.append(Step(**vars(transition), p=p, q=q))
        return rows

    def __len__(self) -> int:
        return len(self.transitions)

    def __repr__(self) -> str:
        return f"Steps({self.name}, {len(self)} steps)"
