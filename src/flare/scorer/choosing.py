"""The defaults of `flare.fit`, in one place: what is fitted, how much of it, and its cost."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..core.memory import memory_budget
from ..core.progress import warn
from ..core.validation import require_positive_int
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..posteriors import STRUCTURES, subsets
from ..posteriors.curvature import probe_count

SUBSET_SIZE = 1000  # uncertain parameters; all of a smaller network
PAIRS, FEWEST_PAIRS = 20_000, 4000  # training pairs of the curvature: at most, and however large the network
TRAINING_WORK = 3e11  # multiplications that calls of the network may cost, for the curvature and for features
REFERENCE_SHARE, REFERENCE_MIN, REFERENCE_MAX = 0.1, 50, 1000  # of the data, set aside as the reference
KEPT = 20_000  # random training samples that are kept for neighbors
_COPIES = 4  # m × m matrices in float64 that a dense posterior needs at once


class Choices(NamedTuple):
    """What is fitted.

    Attributes:
        structure: The structure of the posterior.
        subset: The uncertain parameters.
        subset_kind: Their kind, in words.
        pairs: The number of training pairs of the curvature.
    """

    structure: str
    subset: Subset
    subset_kind: str
    pairs: int

    def count_passes(self, dimension: int) -> int:
        """Forward and backward passes of single samples that the curvature needs."""
        rows = probe_count("auto", self.pairs, self.subset.size, dimension)
        return self.pairs * (rows or dimension)


def choose(
    denoiser: Denoiser,
    subset: Subset | int | str | None,
    structure: str,
    pairs: int | None,
    seed: int,
    memory: int | None,
    work: float,
) -> Choices:
    """Choose subset and sizes by the size of the network and the free memory; see `flare.fit`.

    `work` is the number of multiplications of one call of the network.
    """
    found = STRUCTURES.find(structure)
    if pairs is None:
        pairs = int(min(PAIRS, max(FEWEST_PAIRS, TRAINING_WORK / work)))
    chosen, kind = _choose_subset(denoiser, subset, found.stores_matrix, seed, memory)
    return Choices(found.name, chosen, kind, require_positive_int("pairs", pairs))


def _choose_subset(
    denoiser: Denoiser, subset: Subset | int | str | None, stores_matrix: bool, seed: int, memory: int | None
) -> tuple[Subset, str]:
    """The uncertain parameters, and their kind in words."""
    if isinstance(subset, Subset):
        return subset, "given"
    if isinstance(subset, str):
        whole = {"everything": subsets.everything, "last_layer": subsets.last_layer}
        if subset in whole:
            return whole[subset](denoiser), subset
        return subsets.named(denoiser, subset.split(",")), "named"
    count = SUBSET_SIZE if subset is None else require_positive_int("subset", subset)
    if subset is None and stores_matrix:
        budget = memory_budget(memory, denoiser.device)
        fit = max(1, math.isqrt(budget // (8 * _COPIES)))
        if fit < min(count, denoiser.parameter_count):
            warn(
                f"only {fit:,} parameters are uncertain instead of {count:,}, because the posterior may use "
                f"{budget:,} bytes of memory. Give more memory=, or structure='diagonal'.",
                UserWarning,
            )
        count = min(count, fit)
    if count >= denoiser.parameter_count:
        return subsets.everything(denoiser), "all"
    return subsets.random(denoiser, count=count, seed=seed), "random"


def reference_size(n: int) -> int:
    """How many of n samples are set aside as the reference."""
    share = min(round(REFERENCE_SHARE * n), REFERENCE_MAX)
    return min(max(share, REFERENCE_MIN), n // 2)
