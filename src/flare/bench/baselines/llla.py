"""Last-layer Laplace: the same posterior over the last layer only; works with any rule."""

from __future__ import annotations

from typing import Any

from ...diffusion.noising import Pairs
from ...network.denoiser import Denoiser
from ...posteriors import Posterior, dense, kronecker
from ...posteriors.subsets import last_layer
from ...posteriors.tuning import PriorPrecision, Scale
from ...sampling.sample import sample
from .catalog import BASELINES, Baseline

DENSE_UP_TO = 2_000


def llla(
    denoiser: Denoiser,
    pairs: Pairs,
    prior_precision: PriorPrecision = 1e-6,
    scale: Scale = 1.0,
    name: str | None = None,
    **options: Any,
) -> Posterior:
    """The posterior over the last layer: dense up to 2,000 parameters, Kronecker-factored above.

    The Kronecker factors of a linear last layer are exact, up to the random probes.

    >>> posterior = flare.bench.baselines.llla(denoiser, pairs)
    >>> flare.sample(denoiser, steps, posterior, n=4, shape=(10,), rule="decoupled").score.shape
    torch.Size([4])

    Args:
        denoiser: the network.
        pairs: the training pairs.
        prior_precision: δ; the paper's value by default, or a method to choose it (see `posteriors.dense`).
        scale: s; the paper's value by default, or "calibrated".
        name: of the last layer, if it is not the one that was registered last.
        **options: passed to `posteriors.dense` or `posteriors.kronecker`, such as probes.
    """
    subset = last_layer(denoiser, name)
    fit = dense if subset.size <= DENSE_UP_TO else kronecker
    return fit(denoiser, subset, pairs, prior_precision, scale, **options)


BASELINES.register(
    Baseline(
        "llla",
        "epistemic variance by a last-layer posterior; the paper's recursion by default",
        run=lambda given: sample(
            given.denoiser,
            given.steps,
            given.fitted,
            **given.sampling,
            **{"rule": "decoupled", **given.options},
        ),
        needs="posterior",
        options=("rule", "directions"),
        fit=llla,
    )
)
