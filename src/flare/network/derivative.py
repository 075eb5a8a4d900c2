"""How changes of a network are computed: one setting, carried by the denoiser and honored by every call."""

from __future__ import annotations

from enum import Enum

from ..core.validation import one_of


class Derivative(str, Enum):
    """Which derivative gives the change of f along a direction of (θ, x).

    A call such as `flare.sample(..., derivative="exact")` decides. If it says "auto", the denoiser decides
    (`Denoiser.by`). If that says "auto" too, `autodiff.jvp.prepare` takes what suits the network.
    """

    AUTO = "auto"
    #: forward-mode differentiation in the dtype of the network, at least float32
    EXACT = "exact"
    #: the same by torch.compile: for long runs of small networks
    COMPILED = "compiled"
    #: a difference quotient of a float64 copy of the network: no derivative is needed
    SECANT = "secant"

    @classmethod
    def parse(cls, value: str | Derivative) -> Derivative:
        """The setting by its name; an unknown name is refused with the nearest match."""
        return cls(one_of("derivative", value, [each.value for each in cls]))

    def or_else(self, other: Derivative) -> Derivative:
        """This setting, or the other one if this is AUTO."""
        return other if self is Derivative.AUTO else self
