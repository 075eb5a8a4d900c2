"""The Jacobian of a network by torch.func, which shares no code with the studies."""

from __future__ import annotations

from torch import Tensor
from torch.func import jacrev

import flare


def differentiate(denoiser: flare.Denoiser, x: Tensor, t: Tensor) -> dict[str, Tensor]:
    """∂f/∂θ by the name of the parameter, (B, d, *its shape)."""
    return jacrev(lambda params: denoiser.call(params, x, t))(dict(denoiser.params))


def differentiate_by_state(denoiser: flare.Denoiser, x: Tensor, t: Tensor) -> Tensor:
    """∂f/∂x, (B, d, d)."""
    return jacrev(lambda state: denoiser.call({}, state, t).sum(0))(x).transpose(0, 1)
