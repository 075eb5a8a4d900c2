"""What a network predicts, as two numbers per level: x̂0 = p·x + q·f(x, t).

| prediction | the network's target | p | q |
|---|---|---|---|
| epsilon | ε | 1/α | −σ/α |
| sample | x_0 | 0 | 1 |
| v | α·ε − σ·x_0 | α | −σ |
| flow | ε − x_0 | 1 | −σ |
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.validation import one_of

Prediction = Literal["epsilon", "sample", "v", "flow"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)
_TOLERANCE = 1e-6


def coefficients(prediction: Prediction, alpha: float, sigma: float) -> tuple[float, float]:
    """(p, q) of x̂0 = p·x + q·f at the level (alpha, sigma).

    >>> flare.parameterizations.coefficients("epsilon", 0.5, 0.25)
    (2.0, -0.5)
    >>> flare.parameterizations.coefficients("sample", 0.5, 0.25)
    (0.0, 1.0)
    """
    one_of("prediction", prediction, PREDICTIONS)
    if prediction == "epsilon":
        if alpha == 0:
            raise ValueError(
                "prediction='epsilon' gives no x_0 at a level of pure noise (alpha = 0); train with "
                "prediction='v' or 'sample', or start the sampler at a lower level."
            )
        return 1 / alpha, -sigma / alpha
    if prediction == "sample":
        return 0.0, 1.0
    if prediction == "v":
        if abs(alpha**2 + sigma**2 - 1) > _TOLERANCE:
            raise ValueError(
                f"prediction='v' needs α² + σ² = 1, got α = {alpha:.4g}, σ = {sigma:.4g}; "
                "use prediction='flow' with a flow schedule."
            )
        return alpha, -sigma
    if abs(alpha + sigma - 1) > _TOLERANCE:
        raise ValueError(
            f"prediction='flow' needs α + σ = 1, got α = {alpha:.4g}, σ = {sigma:.4g}; "
            "use schedules.flow(T), or prediction='v' with a variance-preserving schedule."
        )
    return 1.0, -sigma


def target(prediction: Prediction, alpha: Tensor, sigma: Tensor, x0: Tensor, noise: Tensor) -> Tensor:
    """The network's target at x_t = alpha·x0 + sigma·noise.

    >>> x0, noise = torch.ones(2), torch.zeros(2)
    >>> flare.parameterizations.target("epsilon", torch.tensor(0.8), torch.tensor(0.6), x0, noise)
    tensor([0., 0.])

    Args:
        prediction: one of `PREDICTIONS`.
        alpha: α_t, broadcastable to x0, such as (B, 1).
        sigma: σ_t, broadcastable to x0.
        x0: the clean samples, (B, *shape).
        noise: ε, (B, *shape).
    """
    one_of("prediction", prediction, PREDICTIONS)
    if prediction == "epsilon":
        return noise
    if prediction == "sample":
        return x0
    if prediction == "v":
        return alpha * noise - sigma * x0
    return noise - x0


def min_snr_weight(prediction: Prediction, alpha: Tensor, sigma: Tensor, gamma: float = 5.0) -> Tensor:
    """The min-SNR-γ weight of the squared error of f: min(SNR, γ)·q².

    Min-SNR weights the squared error of x̂0 by min(SNR, γ), and x̂0 changes by q per unit of f. The weight is
    min(SNR, γ)/SNR for epsilon and min(SNR, γ)/(SNR+1) for v.

    >>> low, high = torch.tensor([0.99, 0.1]), torch.tensor([0.6, 0.8])  # (α, σ) of two levels
    >>> flare.parameterizations.min_snr_weight("epsilon", *low)
    tensor(0.0510)
    >>> flare.parameterizations.min_snr_weight("epsilon", *high)
    tensor(1.)

    Args:
        prediction: one of `PREDICTIONS`.
        alpha: α_t, any shape.
        sigma: σ_t, the same shape.
        gamma: the largest signal-to-noise ratio.
    """
    one_of("prediction", prediction, PREDICTIONS)
    snr = (alpha / sigma) ** 2
    if prediction == "epsilon":
        # min(SNR, γ)/SNR without 0/0 at alpha = 0
        return torch.where(snr > gamma, gamma / snr, torch.ones_like(snr))
    q2 = torch.ones_like(snr) if prediction == "sample" else sigma**2
    return snr.clamp(max=gamma) * q2
