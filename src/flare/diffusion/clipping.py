"""Limits on the predicted clean sample: a range, or dynamic thresholding with its derivative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Bounds = tuple[float, float]
# the annotations of torch.func do not cover has_aux=False
jvp: Any = torch.func.jvp


@dataclass(frozen=True)
class Threshold:
    """Dynamic thresholding: clip(x̂0, −s, s)/s with s the `ratio` quantile of |x̂0| over a sample.

    s is clamped to [1, maximum]; with a maximum below 1, s = maximum. Between these limits s changes with x̂0:
    the derivative is δx̂0/s − x̂0·δs/s² where |x̂0| < s, and 0 elsewhere.

    Attributes:
        ratio: the quantile, in [0, 1].
        maximum: the largest s.
    """

    ratio: float = 0.995
    maximum: float = 1.0

    def __call__(self, clean: Tensor) -> Tensor:
        """The thresholded samples, (B, *shape)."""
        flat = clean.flatten(1)
        s = torch.quantile(flat.abs(), self.ratio, dim=1, keepdim=True).clamp(1, self.maximum)
        return (torch.maximum(torch.minimum(flat, s), -s) / s).view_as(clean)

    def change(self, clean: Tensor, change: Tensor) -> Tensor:
        """The changes (K, B, *shape) of the thresholded samples along changes of the clean sample."""
        return torch.func.vmap(lambda one: jvp(self, (clean,), (one,))[1])(change)


def bounds(clip: float | tuple[float, float] | None) -> Bounds | None:
    """The range (low, high) of a clip; a number r means [−r, r].

    >>> flare.clipping.bounds(1.0), flare.clipping.bounds((0.0, 1.0)), flare.clipping.bounds(None)
    ((-1.0, 1.0), (0.0, 1.0), None)
    """
    if clip is None:
        return None
    low, high = (-clip, clip) if isinstance(clip, (int, float)) else clip
    if not low < high:
        raise ValueError(
            f"clip must be a positive number r for [-r, r], or a pair (low, high), got {clip!r}."
        )
    return float(low), float(high)
