"""Rules of the budget study: diag(J Σ Jᵀ) of nested shares, exactly, from one J; tangents of some samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare.propagation import Rule

from .jacobians import Jacobian
from .paper_rule import Source

NUMBERS = 2**26  # of J at once


class Shares(Source):
    """Exact for every share and setting, at every k-th step and for some of the samples.

    The steps between have the diagonal of the last step that was computed, and the other samples have zeros.
    With H = Q Λ Qᵀ the squares of J Q are divided by s·Λ + δ, so one product serves all settings of s and δ.

    Args:
        denoiser: the network.
        posteriors: by share and setting; dense or diagonal. The settings of a share have the same curvature.
        rows: which samples of the batch.
        every: k.
    """

    def __init__(
        self,
        denoiser: flare.Denoiser,
        posteriors: Mapping[str, Mapping[str, Any]],
        rows: Tensor,
        every: int = 1,
    ) -> None:
        self.jacobian, self.rows, self.every = Jacobian(denoiser), rows, every
        self.parts = []
        for share, settings in posteriors.items():
            first = next(iter(settings.values()))
            vectors = first.eigenvectors.to(denoiser.dtype) if first.structure == "dense" else None
            variances = torch.stack([1 / one.precision for one in settings.values()], 1).to(denoiser.dtype)
            names = [f"{share} {setting}" for setting in settings]
            self.parts.append((first.subset, vectors, variances, names))
        self.chunk = max(1, NUMBERS // denoiser.parameter_count)  # rows of J
        self.held: dict[str, Tensor] = {}
        #: tr(J Σ Jᵀ) of the chosen samples at each computed step, by share and setting
        self.traces: dict[str, list[Tensor]] = {name: [] for *_, names in self.parts for name in names}

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """The diagonals (B, d), computed or held."""
        if step % self.every == 0:
            own = self._compute(x[self.rows], t[self.rows])
            self.held = {name: torch.zeros_like(x) for name in own}
            for name, diagonal in own.items():
                self.held[name][self.rows] = diagonal
                self.traces[name].append(diagonal.sum(1))
        return self.held

    def _compute(self, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        out: dict[str, list[Tensor]] = {name: [] for name in self.traces}
        size = max(1, self.chunk // x.shape[1])
        for some, times in zip(x.split(size), t.split(size), strict=True):
            _, seen = self.jacobian.look(some, times)
            for subset, vectors, variances, names in self.parts:
                J = self.jacobian.pick(seen, subset)
                squares = (J if vectors is None else J @ vectors).square_()
                for name, diagonal in zip(names, (squares @ variances).unbind(-1), strict=True):
                    out[name].append(diagonal)
        return {name: torch.cat(parts) for name, parts in out.items()}


class Chosen(Rule):
    """A rule for some of the samples of a batch; the variance of the others is zero.

    Args:
        denoiser: the network, which drives the samples.
        rule: what the chosen samples have.
        rows: which samples of the batch.
    """

    def __init__(self, denoiser: flare.Denoiser, rule: Rule, rows: Tensor) -> None:
        self.denoiser, self.rule, self.rows = denoiser, rule, rows

    def init(self, x: Tensor, cond: Any, history: int, noise: Any) -> Any:
        """The rule's state of the chosen samples."""
        return self.rule.init(x[self.rows], cond, history, noise)

    def step(self, state: Any, row: Any, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """f of all samples, and the rule's state after the row."""
        noise = None if z is None else z[self.rows]
        _, state = self.rule.step(state, row, x[self.rows], t[self.rows], noise)
        return self.denoiser(x, t), state

    def finish(self, state: Any, x: Tensor, noise: Any) -> Any:
        """The variance of the chosen samples, at their places."""
        spread = self.rule.finish(state, x[self.rows], noise)
        assert spread is not None
        variance = torch.zeros_like(x)
        variance[self.rows] = spread.variance.to(x)
        return replace(spread, x=x, variance=variance, deviations=None, directions=None)

    def map_state(self, state: Any, function: Any) -> Any:
        """Leave the state alone: it has the chosen samples only."""
        return state
