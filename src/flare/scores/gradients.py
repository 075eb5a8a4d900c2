"""Distances between gradients of a sample and of training samples, measured by the posterior.

- `epistemic_distance`: how unsure the network is about the difference between its answers for a sample and
  for training samples. For a random vector u of the output, Var_θ[uᵀ(f(x_t) − f(x'_t))] = ‖Σ^½(J(x_t) −
  J(x'_t))ᵀu‖² to first order. The squared distance is the mean of this over noise levels, noises and vectors
  u, with min-SNR weights. Effects of the noise on both samples cancel in the difference.
- `influence`: how unlike training samples a sample would move the model, if it were training data. A training
  sample of small weight ν moves the mode of the posterior by −ν·Σg, where g is the gradient of its loss. The
  length of the difference between two such steps, in the metric of the precision Σ⁻¹, is ν‖Σ^½(g − g')‖.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .encoder import SIGNS, Encoder, NetworkCall, Reader
from .score import SCORES, Score
from .space import FEATURES


class _GradientReader(Reader):
    @staticmethod
    def can_read(encoder: Encoder) -> bool:
        """Whether there is a posterior."""
        return encoder.root is not None


class AnswerGradients(_GradientReader):
    """Σ^½ Jᵀu of every state, concatenated, because each has a separate u."""

    def __init__(self, encoder: Encoder, n: int, x: Tensor) -> None:
        super().__init__(encoder, n, x)
        self._found: dict[int, list[Tensor]] = {state: [] for state in range(encoder.states)}

    def read(self, call: NetworkCall) -> None:
        """Pull the probe of each state back."""
        assert self.encoder.root is not None
        rows = call.run.pull(call.probe, len(call.probe)).unflatten(0, (call.size, -1))
        first = (call.pair - self.encoder.first) * SIGNS * len(self.encoder.levels)
        size = max(1, FEATURES // self.encoder.states)
        for place, state in enumerate(range(first + call.states.start, first + call.states.stop)):
            self._found[state].append(self.encoder.root.project(rows[:, place], size, state))

    def features(self) -> Tensor:
        """The blocks of all states."""
        return torch.cat([torch.cat(parts) for parts in self._found.values()], 1) / self.encoder.states**0.5


class LossGradients(_GradientReader):
    """Σ^½ g, with g the mean over levels and noises of √w_t·∇_θ ½‖f(x_t, t) − target‖², w_t min-SNR weights.

    Gradients are averaged before distances are measured, so the contribution of the noise cancels.
    """

    def __init__(self, encoder: Encoder, n: int, x: Tensor) -> None:
        super().__init__(encoder, n, x)
        self._sums = x.new_zeros(n, encoder.subset.size)

    def read(self, call: NetworkCall) -> None:
        """Add the gradients of the losses."""
        self._sums[call.samples] += call.run.pull(call.error, call.size)

    def features(self) -> Tensor:
        """The mean over all states."""
        assert self.encoder.root is not None
        return self.encoder.root.project(self._sums / self.encoder.states, FEATURES)


SCORES.register(
    Score(
        "epistemic_distance",
        "how unsure the network is about the difference between the sample and training samples",
        reader=AnswerGradients,
        of_existing=True,
        needs_data=True,
    )
)
SCORES.register(
    Score(
        "influence",
        "how unlike training samples the sample would move the model, if it were training data",
        reader=LossGradients,
        of_existing=True,
        needs_data=True,
    )
)
