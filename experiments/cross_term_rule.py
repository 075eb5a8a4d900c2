"""The rule of the cross-term study: reruns and tangents of the same draws, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare.propagation import MonteCarlo, Rule

from .jacobians import Push


def covariance(u: Tensor, v: Tensor) -> Tensor:
    """Over the draws, coordinate by coordinate: (S, B, d) twice -> (B, d) float64."""
    return ((u - u.mean(0)) * (v - v.mean(0))).sum(0).double() / (len(u) - 1)


@dataclass(frozen=True)
class State:
    """Rerun models, tangents δx (S, B, d), variances so far (B, d), and the terms of each step.

    The variances: the paper's recursion without and with its cross term; and the two parts whose sum is
    the variance of δx, all b²·Var(δε) and all cross terms, carried to here by the a² of the steps.
    """

    models: Any
    dx: Tensor
    without: Tensor
    with_cross: Tensor
    own: Tensor
    cross: Tensor
    terms: list[Tensor] = field(default_factory=list)


class CrossTerm(Rule):
    """A rule that reruns S models, pushes S tangents of the same draws, and keeps what the step is made of.

    Args:
        denoiser: the network.
        subset: the uncertain parameters.
        directions: S draws of N(0, Σ) divided by √S, (m, S).
    """

    def __init__(self, denoiser: flare.Denoiser, subset: Any, directions: Tensor) -> None:
        self.count = directions.shape[1]
        self.reruns = MonteCarlo(denoiser, subset, directions)
        self.by_theta = Push(denoiser, subset, directions * self.count**0.5)
        self.by_x = Push(denoiser)
        self.left: State | None = None

    def init(self, x: Tensor, cond: Any, keep: int, noise: Any) -> State:
        """Every model starts at x_T: nothing has moved."""
        zero = torch.zeros_like(x, dtype=torch.float64)
        dx = x.new_zeros(self.count, *x.shape)
        return State(self.reruns.init(x, cond, keep, noise), dx, zero, zero, zero, zero)

    def step(self, state: State, row: Any, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, State]:
        """f, and everything after the row."""
        _, by_theta = self.by_theta(x, None, t)
        _, by_x = self.by_x(x, state.dx, t)
        f, models = self.reruns.step(state.models, row, x, t, z)
        change = by_theta + by_x
        own = covariance(by_theta, by_theta)
        moved = state.models.x - x  # by the trained model's path, so that rounding is no covariance
        # as printed: a and b of the row, which know nothing of clipping
        a, b = row.linear[0], -row.linear[1]
        cross = -2 * a * b * covariance(moved, by_theta)
        without = a**2 * state.without + b**2 * own
        # to first order: where x̂0 is clipped, it does not move
        low, high = row.clip
        clean = row.clean(x, f)
        free = ((clean > low) & (clean < high)).to(x.dtype)
        a_x, b_x = row.A + row.B[0] * row.p * free, -row.B[0] * row.q * free
        full_cross = -2 * a_x * b_x * covariance(state.dx, change)
        full_own = b_x**2 * covariance(change, change)
        rest = a_x**2 * covariance(state.dx, state.dx) + full_own
        terms = (cross, without, b**2 * own, full_cross, rest, full_own, covariance(moved, moved))
        state.terms.append(torch.stack([term.sum(1) for term in terms]))
        return f, replace(
            state,
            models=models,
            dx=a_x * state.dx - b_x * change,
            without=without,
            with_cross=a**2 * state.with_cross + b**2 * own + cross,
            own=a_x**2 * state.own + full_own,
            cross=a_x**2 * state.cross + full_cross,
        )

    def trace(self, state: State) -> Tensor:
        """The sum of the variances of δx."""
        return state.dx.var(0).sum(1)

    def finish(self, state: State, x: Tensor, noise: Any) -> Any:
        """The variance of δx; the rest stays in `left`."""
        self.left = state
        spread = self.reruns.finish(state.models, x, noise)
        return replace(spread, variance=state.dx.var(0), deviations=None, directions=None, models=None)
