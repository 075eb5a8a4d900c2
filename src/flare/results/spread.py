"""`Spread`: the output of a propagation rule and the input of the scores, which do not know each other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.conditions import Cond


@dataclass(frozen=True)
class Spread:
    """The epistemic spread of finished samples.

    Attributes:
        x: Samples x_0, (B, *shape).
        variance: Epistemic variance per coordinate, (B, *shape).
        deviations: δx_0 along each direction, (K, B, *shape), with Σ_k δx_0² = variance; None if the rule
            keeps no directions.
        directions: δθ of each deviation, (m, K).
        cond: Conditions of the samples.
        models: x_0 of other models, (K, B, *shape), if the rule reruns the sampler with them.
        covariance: Covariance of all coordinates, (B, d, d), if the rule computes it without deviations.
    """

    x: Tensor
    variance: Tensor
    deviations: Tensor | None
    directions: Tensor | None
    cond: Cond
    models: Tensor | None = None
    covariance: Tensor | None = None
