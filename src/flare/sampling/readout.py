"""Results from the last frame of a batch: samples, variances, scores and observed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ..propagation.observables import Observer
from ..propagation.trajectory import Frame
from ..results.result import Result, Spread
from ..scores import Viewpoint, evaluate


@dataclass(frozen=True)
class Readout:
    """The results to compute from the last frame of a batch.

    Attributes:
        dtype: The dtype of the samples.
        scores: The names of the scores, in the order of the result.
        viewpoint: Where scores of trajectories look at the samples; None if nothing is propagated.
        covariance: Whether to compute the covariances.
        observe: Makes the observer of the samples; None if nothing is observed.
    """

    dtype: torch.dtype
    scores: Sequence[str]
    viewpoint: Viewpoint | None
    covariance: bool
    observe: Callable[[], Observer] | None

    def read(self, frame: Frame, traces: Sequence[Tensor], observer: Observer | None) -> Result:
        """Compute the result of one batch.

        Args:
            frame: Its last frame.
            traces: The traces of its frames, (B,) each.
            observer: Made by `observe`.
        """
        spread, scores = frame.spread, {}
        if spread is not None and self.viewpoint is not None:
            scores = evaluate(self.scores, spread, self.viewpoint)
        result = Result(frame.x.to(self.dtype), scores=scores)
        if spread is not None:
            result = replace(
                result,
                variance=spread.variance,
                covariance=_covariance(spread) if self.covariance else None,
                profile=torch.stack(list(traces), dim=1) if traces else None,
            )
        if observer is None:
            return result
        if spread is None:
            return replace(result, observed=observer.value(frame.x))
        value, variance = observer(spread)
        return replace(result, observed=value, observed_variance=variance)


def _covariance(spread: Spread) -> Tensor:
    """Σ_k δx_0 δx_0ᵀ, (B, d, d), or what the rule has computed itself."""
    if spread.covariance is not None:
        return spread.covariance
    flat = cast("Tensor", spread.deviations).flatten(2)
    return torch.einsum("kbi,kbj->bij", flat, flat)
