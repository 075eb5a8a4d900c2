"""Baselines by name, with what each needs, so that a command can run any of them.

A file of this room defines a baseline and registers its `Baseline`; the command line and its help read the
registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch import Tensor

from ..core.registry import Registry
from ..diffusion.noising import Pairs
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..results.result import Result

#: what a baseline needs besides a model
Need = Literal["nothing", "posterior", "models", "hypernetwork", "samples"]


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
    """

    denoiser: Denoiser
    steps: Steps
    sampling: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    posterior: Posterior | None = None
    models: Sequence[Denoiser] = ()
    samples: Tensor | None = None

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
        count_trajectories: how many trajectories it runs per sample, for progress bars; 0 if it scores
            existing samples.
    """

    name: str
    summary: str
    run: Callable[[Inputs], Result]
    needs: Need = "nothing"
    options: tuple[str, ...] = ()
    fit: Callable[[Denoiser, Pairs], Posterior] | None = None
    count_trajectories: Callable[[Inputs], int] = lambda given: 1


#: every baseline by name
BASELINES: Registry[Baseline] = Registry("baseline")
