"""How unsure the network is about the difference between its answers for a sample and for training samples.

For a random vector u of the output, Var_θ[uᵀ(f(x_t) − f(x'_t))] = ‖Σ^½(J(x_t) − J(x'_t))ᵀu‖² to first order.
The squared distance is the mean of this over noise levels, noises and vectors u, with min-SNR weights. What
the noise does to both samples cancels in the difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .encoder import SIGNS, Call, Encoder, Reader
from .score import SCORES, Score
from .space import FEATURES


class AnswerGradients(Reader):
    """Σ^½ Jᵀu of every level and pair of noises, side by side, since each has its own u."""

    @staticmethod
    def can_read(encoder: Encoder) -> bool:
        """Whether there is a posterior."""
        return encoder.root is not None

    def __init__(self, encoder: Encoder, n: int, x: Tensor) -> None:
        super().__init__(encoder, n, x)
        assert encoder.root is not None
        blocks = len(encoder.levels) * encoder.pairs
        self._root, self._size = encoder.root, max(1, FEATURES // blocks)
        self._found = x.new_zeros(blocks, n, self._root.width(self._size), dtype=torch.float64)

    def read(self, call: Call) -> None:
        """Pull the probe of each level back, for ε and −ε together."""
        levels = sorted(set(call.levels))
        pulled = call.run.pull(call.probe, call.size * len(levels)).unflatten(0, (call.size, -1))
        for place, level in enumerate(levels):
            block = (call.pair - self.encoder.first) * len(self.encoder.levels) + level
            self._found[block, call.samples] += self._root.multiply(pulled[:, place], self._size, block)

    def features(self) -> Tensor:
        """The blocks of all levels and pairs."""
        return self._found.movedim(0, 1).flatten(1) / (SIGNS * len(self._found) ** 0.5)


SCORES.register(
    Score(
        "epistemic_distance",
        "how unsure the network is about the difference between the sample and training samples",
        reader=AnswerGradients,
        of_existing=True,
        needs_data=True,
    )
)
