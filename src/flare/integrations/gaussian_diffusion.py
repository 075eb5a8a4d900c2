"""Objects that hold a network with its betas, such as GaussianDiffusion of denoising-diffusion-pytorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..diffusion.schedules import from_betas
from ..model import Model

OBJECTIVES = {"pred_noise": "epsilon", "pred_x0": "sample", "pred_v": "v"}
LIMIT = 1.0  # the range of samples inside


def open_gaussian_diffusion(net: Any) -> Any:
    """A `Model` of a GaussianDiffusion, of images or series; anything else is returned unchanged.

    The network works on samples in [−1, 1]: `auto_normalize` of the object concerns its own loss and sampler.
    """
    inner, betas = (getattr(net, name, None) for name in ("model", "betas"))
    prediction = OBJECTIVES.get(getattr(net, "objective", ""))
    if not isinstance(inner, nn.Module) or not isinstance(betas, Tensor) or prediction is None:
        return net
    sides = net.image_size if hasattr(net, "image_size") else (net.seq_length,)
    sides = (sides, sides) if isinstance(sides, int) else sides
    schedule = from_betas(betas.detach().cpu().double())
    return Model(inner, schedule, prediction, shape=(net.channels, *sides), clip=LIMIT)
