"""Baselines by name, with what each needs, so that a command can run any of them.

A file of this room defines a baseline and registers its `Baseline`; the command line and its help read the
registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch import Tensor

from ...core.registry import Registry
from ...diffusion.noising import Pairs
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...posteriors import Posterior
from ...results.result import Result
from .comparison import Comparison, Fitted

#: what a baseline needs besides a model; with real data it scores existing samples
Need = Literal["nothing", "posterior", "models", "hypernetwork", "samples", "real data"]


@dataclass(frozen=True)
class Inputs:
    """What a baseline can be run with.

    Attributes:
        denoiser: the network.
        steps: a sampler's table.
        sampling: arguments of `flare.sample`: n, shape, seed, first, batch_size and progress.
        options: the baseline's own options.
        posterior: over the parameters of the network, for baselines that need one.
        models: several models, for baselines that need them; those of a hypernetwork, too.
        samples: existing samples, (n, *shape), for baselines that score them.
        real: real data, (m, *shape), for baselines that compare with it.
        comparison: what such a baseline has learned from it.
    """

    denoiser: Denoiser
    steps: Steps
    sampling: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    posterior: Posterior | None = None
    models: Sequence[Denoiser] = ()
    samples: Tensor | None = None
    real: Tensor | None = None
    comparison: Fitted | None = None

    @property
    def existing(self) -> Tensor:
        """The samples of a baseline that needs them."""
        return cast("Tensor", self.samples)

    @property
    def fitted(self) -> Posterior:
        """The posterior of a baseline that needs one."""
        return cast("Posterior", self.posterior)


@dataclass(frozen=True)
class Baseline:
    """A baseline and its facts.

    Attributes:
        name: what users call it.
        summary: one line for help texts and tables.
        run: samples with scores.
        needs: what it needs besides a model.
        options: the names of its own options.
        fit: the posterior of its publication; None for baselines without one.
        compare: the method of a baseline that compares with real data; None for others.
        count_trajectories: how many trajectories it runs per sample, for progress bars; 0 if it scores
            existing samples.
    """

    name: str
    summary: str
    run: Callable[[Inputs], Result]
    needs: Need = "nothing"
    options: tuple[str, ...] = ()
    fit: Callable[[Denoiser, Pairs], Posterior] | None = None
    compare: Callable[[Inputs], Comparison] | None = None
    count_trajectories: Callable[[Inputs], int] = lambda given: 1

    @property
    def scores_existing(self) -> bool:
        """Whether it scores existing samples instead of drawing its own."""
        return self.needs in ("samples", "real data")


#: every baseline by name
BASELINES: Registry[Baseline] = Registry("baseline")


def register_comparison(
    name: str, summary: str, compare: Callable[[Inputs], Comparison], options: tuple[str, ...]
) -> Baseline:
    """Register a baseline that compares existing samples with real data; see `Baseline`."""

    def run(given: Inputs) -> Result:
        keys = ("seed", "first", "batch_size")
        sampling = {key: given.sampling[key] for key in keys if key in given.sampling}
        values = cast("Fitted", given.comparison).score(given.existing, **sampling)
        return Result(given.existing, scores={name: values})

    return BASELINES.register(
        Baseline(
            name,
            summary,
            run=run,
            needs="real data",
            options=options,
            compare=compare,
            count_trajectories=lambda given: 0,
        )
    )
