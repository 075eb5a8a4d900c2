"""The epistemic variance of any function of the samples: push the directions through it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..autodiff.jvp import push_through
from ..core.progress import warn
from ..network.forward_mode import Derivative, ForwardModeError
from ..results.result import Spread

Observable = Callable[[Tensor], Tensor]


class Observer:
    """Computes φ(x_0) and Σ_k (∂φ/∂x·δx_0)² for a decoder, a feature, a forecast.

    If the rule reran other models, the variance is that of their φ(x_0), without a derivative.

    Args:
        function: φ, (B, *shape) -> (B, *out).
        derivative: EXACT (the same as COMPILED here), SECANT, or AUTO: exact with secant as the fallback.
    """

    def __init__(self, function: Observable, derivative: Derivative) -> None:
        self.function = function
        self.derivative = Derivative.EXACT if derivative is Derivative.COMPILED else derivative
        #: how it was computed in the end
        self.taken = self.derivative.value
        self.name = getattr(function, "__name__", type(function).__name__)

    def value(self, x: Tensor) -> Tensor:
        """φ(x), checked: (B, *out)."""
        out = self.function(x)
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.shape[:1] != x.shape[:1]:
            got = (
                f"{out.dtype} of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            )
            raise ValueError(
                f"observe must return a floating-point tensor with one row per sample, {len(x)}, but "
                f"{self.name} returned {got}."
            )
        return out

    def __call__(self, spread: Spread) -> tuple[Tensor, Tensor]:
        """φ (B, *out) and its variance (B, *out)."""
        value = self.value(spread.x)
        if spread.models is not None:
            self.taken = "rerun models"
            rerun = torch.stack([self.value(x) for x in spread.models])
            return value, rerun.var(0)
        if spread.deviations is None:
            raise ValueError("observe needs a rule that keeps its directions; use rule='tangent'.")
        return value, self._changes(spread.x, spread.deviations).square().sum(0)

    def _changes(self, x: Tensor, dx: Tensor) -> Tensor:
        """Compute ∂φ/∂x·δx_k, (K, B, *out)."""
        if self.derivative is not Derivative.SECANT:
            try:
                changes = push_through(self.function, x, dx)
                if changes.any() or not dx.any():
                    self.taken = Derivative.EXACT.value
                    return changes
                why = f"{self.name} does not depend on the sample: detach or rounding cuts the derivative"
            except ForwardModeError as error:
                if self.derivative is Derivative.EXACT:
                    raise
                why = error.reason
            if self.derivative is Derivative.EXACT:
                raise ValueError(f"{why}. Write it in differentiable operations, or use derivative='secant'.")
            warn(f"{why}; derivative='auto' takes secants.")
            self.derivative = Derivative.SECANT
            self.taken = self.derivative.value
        return push_through(self.function, x, dx, Derivative.SECANT)
