"""How far a sample would move the model if it were training data, in the posterior's own units.

A training sample of small weight ν moves the mode of the posterior by −ν·Σg, where g is the gradient of its
loss. The squared length of this step, measured by the precision Σ⁻¹, is ν²·gᵀΣg.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..autodiff.vjp import loss_gradients
from ..core import INFLUENCE_LEVELS, SHARED_REPEATS
from ..core.conditions import Cond
from .renoising import Renoising
from .score import SCORES, Score


def influence(x: Tensor, cond: Cond, null: Cond | None, at: Renoising) -> Tensor:
    """gᵀΣg, with g the mean over levels and noises of √w_t·∇_θ ½‖f(x_t, t) − target‖², w_t min-SNR weights.

    Gradients are averaged before they are squared, so that those of the noise cancel.
    """
    assert at.subset is not None
    assert at.quadratic is not None
    noised = at.noise(x)
    weight = noised.weight.sqrt() / len(noised.weight)
    g = loss_gradients(at.denoiser, at.subset, noised.x, noised.t, noised.target, weight, cond).double().cpu()
    lost = ~g.isfinite().all(1)
    g[lost] = 0  # an iterative solver takes all rows together
    return at.quadratic(g).masked_fill(lost, torch.nan).to(x)


SCORES.register(
    Score(
        "influence",
        "how far the sample would move the model if it were training data",
        of_samples=influence,
        of_existing=True,
        levels=INFLUENCE_LEVELS,
        repeats=SHARED_REPEATS,
    )
)
