"""How the uncertainty of the parameters becomes that of a sample: the reverse loop, and rules, one file each.

A rule takes directions D (m, K) with Σ ≈ D Dᵀ, and rides along the trajectory of a batch.
"""

from __future__ import annotations

from ..core.registry import import_room
from .decoupled import Decoupled
from .endpoint import Endpoint
from .monte_carlo import MonteCarlo
from .released import Released
from .rules import RULES, Coefficients, Ingredients, RuleSpec
from .tangent import ExactTangent, Tangent
from .trajectory import Rule

__all__ = [
    "RULES",
    "Coefficients",
    "Decoupled",
    "Endpoint",
    "ExactTangent",
    "Ingredients",
    "MonteCarlo",
    "Released",
    "Rule",
    "RuleSpec",
    "Tangent",
]

import_room(__name__, __path__)
