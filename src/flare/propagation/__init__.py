"""How the uncertainty of the parameters becomes that of a sample: rules, one file each.

A rule takes directions D (m, K) with Σ ≈ D Dᵀ, and has `init`, `step`, `trace` and `finish`.
"""

from __future__ import annotations

from .decoupled import Decoupled
from .endpoint import Endpoint
from .monte_carlo import MonteCarlo
from .released import Released
from .tangent import ExactTangent, Tangent

__all__ = ["RULES", "Decoupled", "Endpoint", "ExactTangent", "MonteCarlo", "Released", "Tangent"]

RULES = {
    "tangent": Tangent,
    "decoupled": Decoupled,
    "released": Released,
    "monte_carlo": MonteCarlo,
    "endpoint": Endpoint,
}
