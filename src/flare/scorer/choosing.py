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
BATCH = 500  # pairs that are drawn at once
TRAINING_WORK = 3e11  # multiplications that calls of the network may cost, for the curvature and for features
REFERENCE_SHARE, REFERENCE_MIN, REFERENCE_MAX = 0.1, 50, 1000  # of the data, set aside as the reference
PAIR_CALLS, ROW_CALLS = 1.7, 1.1  # forward calls that a pair, and one row of its J, take as long as on a UNet
# Above this many multiplications per call, a network is expensive, and a fit by default takes no longer
# than drawing 1,000 samples in 50 steps, 50,000 calls: the curvature takes 11,000 (8 rows for each of 1,000
# parameters), features of 1,000 training samples and the reference (8 noised copies each, one row per copy)
# 36,000, and the check of the model 1,000. benchmarks/knee.py shows what more of each would bring.
EXPENSIVE = 1e8
EXPENSIVE_PAIRS, EXPENSIVE_BATCH, EXPENSIVE_REFERENCE = 1000, 50, 300
KEPT = 20_000  # random training samples that are kept for neighbors
_COPIES = 4  # m × m matrices in float64 that a dense posterior needs at once


class Choices(NamedTuple):
    """The choices of a fit.

    Attributes:
        structure: The structure of the posterior.
        subset: The uncertain parameters.
        subset_kind: Their kind, in words.
        pairs: The number of training pairs of the curvature.
        batch_size: How many of them are drawn at once.
    """

    structure: str
    subset: Subset
    subset_kind: str
    pairs: int
    batch_size: int

    def count_passes(self, dimension: int) -> int:
        """Forward and backward passes of single samples that the curvature needs."""
        rows = probe_count("auto", self.pairs, self.subset.size, dimension)
        return self.pairs * (rows or dimension)

    def count_calls(self, dimension: int) -> float:
        """The number of forward calls that take as long."""
        return PAIR_CALLS * self.pairs + ROW_CALLS * self.count_passes(dimension)


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
    batch_size = BATCH
    if pairs is None and work > EXPENSIVE:
        pairs, batch_size = EXPENSIVE_PAIRS, EXPENSIVE_BATCH
    elif pairs is None:
        pairs = int(min(PAIRS, max(FEWEST_PAIRS, TRAINING_WORK / work)))
    chosen, kind = _choose_subset(denoiser, subset, found.stores_matrix, seed, memory)
    return Choices(found.name, chosen, kind, require_positive_int("pairs", pairs), batch_size)


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


def reference_size(n: int, work: float = 0.0) -> int:
    """How many of n samples are set aside as the reference, fewer for an expensive network."""
    share = min(round(REFERENCE_SHARE * n), EXPENSIVE_REFERENCE if work > EXPENSIVE else REFERENCE_MAX)
    return min(max(share, REFERENCE_MIN), n // 2)
