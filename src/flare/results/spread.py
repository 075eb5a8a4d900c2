"""The epistemic spread of finished samples: what propagation hands to the scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.conditions import Cond


@dataclass(frozen=True)
class Spread:
    """The epistemic spread of finished samples, as a rule leaves it.

    Attributes:
        x: the samples x_0, (B, *shape).
        variance: of each coordinate, (B, *shape).
        deviations: δx_0 along each direction, (K, B, *shape), Σ_k δx_0² = variance; None if the rule
            keeps no directions.
        directions: the δθ that the deviations belong to, (m, K).
        cond: the conditions of the samples.
        models: the samples of other models, (K, B, *shape), if the rule reran them.
    """

    x: Tensor
    variance: Tensor
    deviations: Tensor | None
    directions: Tensor | None
    cond: Cond
    models: Tensor | None = None
