"""What ensembles, hypernetworks and draws of a posterior share: several models, the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..sampling.sample import sample


def rollouts(models: Sequence[Denoiser], steps: Steps, **options: Any) -> Tensor:
    """Where each of M models ends from the same start with the same noise, (M, n, *shape).

    Args:
        models: of which there must be 2 or more, for a variance.
        steps: a sampler's table.
        **options: of `flare.sample`: n and shape, or start; seed, cond, batch_size.
    """
    if len(models) < 2:
        raise ValueError(f"a variance over models needs at least 2 of them, got {len(models)}.")
    return torch.stack([sample(model, steps, **options).samples for model in models])
