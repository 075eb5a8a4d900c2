"""Samples of several models from the same start, shared by ensembles, HyperDM and posterior draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...sampling.sample import sample


def roll_out(
    models: Sequence[Denoiser], steps: Steps, seed: int | Sequence[int] = 0, **options: Any
) -> Tensor:
    """The samples of each of M models, (M, n, *shape).

    Args:
        models: M ≥ 2 models, for a variance over them.
        steps: a sampler's table.
        seed: of the noise: one for all models, or one per model.
        **options: passed to `flare.sample`: n and shape, or start; cond, batch_size.
    """
    if len(models) < 2:
        raise ValueError(
            f"a variance over models needs at least 2 models, got {len(models)}; pass more of them."
        )
    seeds = seed if isinstance(seed, Sequence) else [seed] * len(models)
    runs = zip(models, seeds, strict=True)
    return torch.stack([sample(model, steps, seed=own, **options).samples for model, own in runs])
