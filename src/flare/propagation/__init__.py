"""From uncertain parameters to uncertain samples: the reverse loop, and one file per rule.

A rule takes directions D (m, K) with Σ ≈ D Dᵀ, and follows the trajectory of a batch.
"""

from __future__ import annotations

from ..results.result import Spread
from .decoupled import Decoupled, DecoupledAppendix, Released
from .endpoint import Endpoint
from .monte_carlo import MonteCarlo
from .tangent import ExactTangent, Tangent
from .trajectory import RULES, Ingredients, Rule

__all__ = [
    "RULES",
    "Decoupled",
    "DecoupledAppendix",
    "Endpoint",
    "ExactTangent",
    "Ingredients",
    "MonteCarlo",
    "Released",
    "Rule",
    "Spread",
    "Tangent",
]
