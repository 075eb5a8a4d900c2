"""How unsure the network is about the difference between its answers for a sample and for training samples.

For a random vector u of the output, Var_θ[uᵀ(f(x_t) − f(x'_t))] = ‖Σ^½(J(x_t) − J(x'_t))ᵀu‖² to first order.
The squared distance is the mean of this over noise levels, noises and vectors u, with min-SNR weights. What
the noise does to both samples cancels in the difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .encoder import SIGNS, Encoder, NetworkCall, Reader
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
        size = max(1, FEATURES // blocks)
        self._roots = [encoder.root.columns(size, block).to(x.device) for block in range(blocks)]
        self._found = [root.new_zeros(n, root.shape[1]) for root in self._roots]

    def read(self, call: NetworkCall) -> None:
        """Pull the probe of each level back, for ε and −ε together."""
        levels = sorted(set(call.levels))
        pulled = call.run.pull(call.probe, call.size * len(levels)).unflatten(0, (call.size, -1)).double()
        for place, level in enumerate(levels):
            block = (call.pair - self.encoder.first) * len(self.encoder.levels) + level
            self._found[block][call.samples] += pulled[:, place] @ self._roots[block]

    def features(self) -> Tensor:
        """The blocks of all levels and pairs."""
        return torch.cat(self._found, dim=1) / (SIGNS * len(self._found) ** 0.5)


SCORES.register(
    Score(
        "epistemic_distance",
        "how unsure the network is about the difference between the sample and training samples",
        reader=AnswerGradients,
        of_existing=True,
        needs_data=True,
    )
)
