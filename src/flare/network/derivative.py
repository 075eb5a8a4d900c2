"""How derivatives of a network are computed: a setting of the denoiser that single calls can override."""

from __future__ import annotations

from enum import Enum

from ..core.validation import one_of


class Derivative(str, Enum):
    """How to compute the change of f along a direction of (θ, x).

    A call such as `flare.sample(..., derivative="exact")` decides. With "auto" the setting of the denoiser
    (`Denoiser.by`) applies. If that is "auto" too, `autodiff.jvp.prepare` chooses what suits the network.

    >>> flare.Derivative("secant") is flare.Derivative.SECANT
    True
    """

    AUTO = "auto"
    #: forward-mode differentiation in the dtype of the network, at least float32
    EXACT = "exact"
    #: the same, compiled by torch.compile: for long runs of small networks
    COMPILED = "compiled"
    #: a difference quotient of a float64 copy of the network, which needs no derivative
    SECANT = "secant"

    @classmethod
    def parse(cls, value: str | Derivative) -> Derivative:
        """The setting with this name; an unknown name raises an error with the nearest match."""
        return cls(one_of("derivative", value, [each.value for each in cls]))

    def or_else(self, other: Derivative) -> Derivative:
        """This setting, or the other one if this is AUTO."""
        return other if self is Derivative.AUTO else self
