"""Deep ensemble: the variance of the samples of independently trained models, with the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...results.result import Result
from .catalog import BASELINES, Baseline
from .rollouts import roll_out


def ensemble(
    denoisers: Sequence[Denoiser],
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Samples of the first model, scored by Σ_i Var_m x_0,i over the M models.

    >>> other = flare.Denoiser(net)
    >>> flare.bench.baselines.ensemble([denoiser, other], steps, n=4, shape=(10,)).score.shape
    torch.Size([4])

    Args:
        denoisers: M ≥ 2 models; the samples of the first are returned.
        steps: a sampler's table.
        n: the number of samples.
        shape: of one sample.
        seed: of the noise.
        **options: passed to `flare.sample`, such as cond, start and batch_size.
    """
    ends = roll_out(denoisers, steps, seed, n=n, shape=shape, **options)
    variance = ends.var(0)
    return Result(ends[0], variance, {"ensemble": variance.flatten(1).sum(1)})


BASELINES.register(
    Baseline(
        "ensemble",
        "variance of the samples of several trained models, with the same noise",
        run=lambda given: ensemble(given.models, given.steps, **given.sampling),
        needs="models",
        count_trajectories=lambda given: len(given.models),
    )
)
