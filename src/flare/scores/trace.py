"""The trace of a sample's epistemic covariance: the paper's score."""

from __future__ import annotations

from torch import Tensor

from ..core import ENDPOINT_LEVELS
from ..results.spread import Spread
from .score import SCORES, Score


def trace(spread: Spread) -> Tensor:
    """Σ over the coordinates of the variance: every way in which a sample could move counts."""
    return spread.variance.flatten(1).sum(1)


SCORES.register(
    Score(
        "trace",
        "how far the sample would move under other models",
        of_spread=trace,
        of_existing=True,
        levels=ENDPOINT_LEVELS,
    )
)
