"""Deep ensemble: models that were trained apart, the same noise, the variance of where they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..results.result import Result
from .rollouts import rollouts


def ensemble(
    denoisers: Sequence[Denoiser],
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    **options: Any,
) -> Result:
    """The samples of the first model, scored by Σ_i Var_m x_0,i over the M models.

    Args:
        denoisers: M ≥ 2 models; the first one's samples are returned.
        steps: a sampler's table.
        n: how many samples.
        shape: of one sample.
        **options: of `flare.sample`, such as seed, cond, start and batch_size.
    """
    ends = rollouts(denoisers, steps, n=n, shape=shape, **options)
    variance = ends.var(0)
    return Result(ends[0], variance, {"ensemble": variance.flatten(1).sum(1)})
