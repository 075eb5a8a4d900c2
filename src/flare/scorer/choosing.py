"""The defaults of `flare.fit` and `Scorer`, in one place: what is fitted, how much of it, and its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..core.defaults import INFLUENCE_LEVELS, SHARED_REPEATS
from ..core.memory import memory_budget
from ..core.validation import require_instance, require_positive_int
from ..diffusion import samplers
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..posteriors import STRUCTURES, subsets
from ..posteriors.curvature import probe_count

SCORES = ("influence", "neighbors")  # what the verdict adds up; without training data, the first alone
STRUCTURE = "dense"
SUBSET_SIZE = 1000  # uncertain parameters; all of a smaller network
DRAW_SUBSET = subsets.random  # how these are drawn; subsets.sketch draws sums of all parameters
PAIRS = 20_000  # training pairs of the curvature
LARGE, LARGE_PAIRS = 1_000_000, 4000  # networks with more parameters get fewer pairs
REFERENCE_SHARE, REFERENCE_MIN, REFERENCE_MAX = 0.1, 50, 1000  # of the data, set aside as the reference
KEPT = 20_000  # random training samples that are kept for neighbors
NEAREST = 5  # neighbors of a sample
STEPS = 50  # of the sampler
REGIONS = 16  # of the data, of which a filter keeps equal shares
DATA_PER_REGION = 400  # real samples that define the regions
SAMPLES_PER_REGION = 10  # at least: few samples have fewer regions
_COPIES = 4  # m × m matrices in float64 that a dense posterior needs at once


@dataclass(frozen=True)
class Choices:
    """What is fitted, and what it costs.

    Attributes:
        structure: of the curvature.
        subset: the uncertain parameters.
        subset_kind: their kind, in words.
        parameters: how many parameters the network has.
        pairs: how many training pairs the curvature takes.
        reference: how many real samples are scored for comparison.
        dimension: how many numbers a sample has.
    """

    structure: str
    subset: Subset
    subset_kind: str
    parameters: int
    pairs: int
    reference: int
    dimension: int

    @property
    def passes(self) -> int:
        """Forward and backward passes of single samples that the fit needs, without the model check."""
        rows = probe_count("auto", self.pairs, self.subset.size, self.dimension)
        return self.pairs * (rows or self.dimension) + self.reference * SCORE_PASSES

    def __str__(self) -> str:
        return (
            f"a {self.structure} posterior over {self.subset.size:,} of {self.parameters:,} parameters "
            f"({self.subset_kind}) from {self.pairs:,} training pairs, and {self.reference:,} real samples "
            f"to compare with: about {self.passes:,} forward and backward passes"
        )


SCORE_PASSES = len(INFLUENCE_LEVELS) * SHARED_REPEATS  # forward and backward passes to score one sample


def choose(
    denoiser: Denoiser, dimension: int, reference: int, settings: Any, memory: int | None = None
) -> Choices:
    """Choose subset, structure and sizes by the size of the network and the free memory.

    Args:
        denoiser: the network.
        dimension: how many numbers a sample has.
        reference: how many real samples are scored for comparison.
        settings: `subset`, `structure`, `pairs` and `seed` of `flare.fit`; None leaves the choice to us.
        memory: bytes that the posterior may use; half of the free memory by default.
    """
    p = denoiser.parameter_count
    structure = STRUCTURES.find(settings.structure or STRUCTURE)
    pairs = settings.pairs or (PAIRS if p <= LARGE else LARGE_PAIRS)
    subset, kind = _choose_subset(denoiser, structure.stores_matrix, settings, memory)
    return Choices(
        structure.name, subset, kind, p, require_positive_int("pairs", pairs), reference, dimension
    )


def _choose_subset(
    denoiser: Denoiser, stores_matrix: bool, settings: Any, memory: int | None
) -> tuple[Subset, str]:
    """The uncertain parameters, and their kind in words."""
    if isinstance(settings.subset, Subset):
        return settings.subset, "given"
    count = SUBSET_SIZE if settings.subset is None else require_positive_int("subset", settings.subset)
    if settings.subset is None and stores_matrix:
        budget = memory_budget(memory, denoiser.device)
        count = min(count, max(1, math.isqrt(budget // (8 * _COPIES))))
    if count >= denoiser.parameter_count:
        return subsets.everything(denoiser), "all"
    return DRAW_SUBSET(denoiser, count=count, seed=settings.seed), DRAW_SUBSET.__name__


def reference_size(n: int) -> int:
    """How many of n samples are set aside as the reference."""
    share = min(round(REFERENCE_SHARE * n), REFERENCE_MAX)
    return min(max(share, REFERENCE_MIN), n // 2)


def default_steps(schedule: Schedule, steps: int | Steps, clip: float) -> Steps:
    """The sampler's table: as given, or so many steps of DDIM (of Euler's method for a flow).

    Args:
        schedule: the noise levels.
        steps: how many, or a table.
        clip: the largest absolute value of the data, to which clean samples are clipped.
    """
    if isinstance(steps, Steps):
        return steps
    if isinstance(steps, bool) or not hasattr(steps, "__index__"):
        require_instance(
            "steps", steps, Steps, "give a number of steps, or a sampler's table such as flare.samplers.ddpm"
        )
    if not (schedule.continuous or schedule.variance_preserving):
        raise ValueError(
            f"there is no default sampler for {schedule}; give a sampler's table, steps=flare.samplers...."
        )
    make = samplers.euler if schedule.continuous else samplers.ddim
    return make(schedule, min(require_positive_int("steps", steps), schedule.T), clip=clip)
