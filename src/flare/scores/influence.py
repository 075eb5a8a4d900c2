"""How differently from training samples a sample would move the model if it were training data.

A training sample of small weight ν moves the mode of the posterior by −ν·Σg, where g is the gradient of its
loss. The length of the difference between two such steps, measured by the precision Σ⁻¹, is ν‖Σ^½(g − g')‖.
"""

from __future__ import annotations

from torch import Tensor

from .encoder import Encoder, NetworkCall, Reader
from .score import SCORES, Score
from .space import FEATURES


class LossGradients(Reader):
    """Σ^½ g, with g the mean over levels and noises of √w_t·∇_θ ½‖f(x_t, t) − target‖², w_t min-SNR weights.

    Gradients are averaged before distances are measured, so that those of the noise cancel.
    """

    @staticmethod
    def can_read(encoder: Encoder) -> bool:
        """Whether there is a posterior."""
        return encoder.root is not None

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
        "influence",
        "how differently from training samples the sample would move the model, if it were training data",
        reader=LossGradients,
        of_existing=True,
        needs_data=True,
    )
)
