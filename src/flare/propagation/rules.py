"""Rules by name: how the uncertainty of the parameters becomes that of a sample, with the facts of each rule.

A file of this room defines a rule and registers its `RuleSpec`; sampling, help texts and documents read the
registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.registry import Registry
from ..diffusion.steps import Steps
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from .trajectory import Rule

#: the coefficients a_t and b_t of the paper's main text, which are the sampler's own, or of its Appendix A
Coefficients = Literal["main", "appendix"]


@dataclass(frozen=True)
class Ingredients:
    """What a rule can be built from.

    Attributes:
        denoiser: the network, prepared for derivatives if the rule needs them.
        driver: the network in its own precision.
        subset: the uncertain parameters.
        directions: D (m, K) with Σ ≈ D Dᵀ; (m, 0) if the rule needs none.
        exact: whether D Dᵀ is Σ itself.
        steps: the sampler's table.
        coefficients: which of the paper's coefficients the rule takes, if it has a choice.
        covariance: whether full covariances are asked for.
    """

    denoiser: Denoiser
    driver: Denoiser
    subset: Subset
    directions: Tensor
    exact: bool
    steps: Steps
    coefficients: Coefficients = "main"
    covariance: bool = False


@dataclass(frozen=True)
class RuleSpec:
    """A rule and its facts.

    Attributes:
        name: what users call it.
        summary: one line for help texts and tables.
        build: makes the rule.
        needs_directions: whether it takes directions of the posterior.
        needs_derivatives: whether it differentiates the network.
        drives_itself: whether its own f(x, t) moves the samples of a network in half precision, too; if
            not, the network itself moves them.
        calibrated_score: the default score if the posterior is calibrated; `trace` otherwise.
        coefficients: the sets of coefficients that the rule can take.
    """

    name: str
    summary: str
    build: Callable[[Ingredients], Rule]
    needs_directions: bool = True
    needs_derivatives: bool = True
    drives_itself: bool = False
    calibrated_score: str = "trace"
    coefficients: tuple[Coefficients, ...] = ("main",)

    @classmethod
    def of(cls, rule: Rule) -> RuleSpec:
        """The spec of a rule that is built already."""
        return cls(type(rule).__name__, "", lambda _: rule, needs_directions=False, drives_itself=True)

    def default_score(self, calibrated: bool) -> str:
        """The score that is used if none is asked for, the same in every function and command."""
        return self.calibrated_score if calibrated else "trace"


#: every rule by name
RULES: Registry[RuleSpec] = Registry("rule")
