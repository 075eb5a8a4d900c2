"""The candidates of the study of the verdict, fixed before a reporting seed was run.

Every candidate is computed from what a run of `verdict` stored: the scores of samples and of real data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

import flare

NEIGHBORS, ACTIVATIONS, EPISTEMIC, INFLUENCE = (
    "neighbors", "activations", "epistemic_distance", "influence",
)  # fmt: skip
FOUR = (NEIGHBORS, ACTIVATIONS, EPISTEMIC, INFLUENCE)
NORM, CENTERED = "influence, norm", "influence, centered"  # gᵀΣg of 0.4, and that of g − mean g
VERDICT = f"Σ max(0, z)² of {' + '.join(FOUR)}"  # that of the library
OLD = f"0.4: Σ z of gᵀΣg + {NEIGHBORS}"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a run says about its samples.

    Attributes:
        scores: of the samples by name, (n,) each.
        real: of the real data that they are compared with.
        repeatability: the rank correlation of scores with other noise, of those that need noise.
    """

    scores: Mapping[str, Tensor]
    real: Mapping[str, Tensor]
    repeatability: Mapping[str, float]

    @cached_property
    def reference(self) -> flare.Reference:
        """The real data."""
        return flare.Reference(self.real)

    def z(self, names: Sequence[str]) -> Tensor:
        """The z of scores, (k, n)."""
        return torch.stack([self.reference.z(name, self.scores[name]) for name in names])


def add(evidence: Evidence, names: Sequence[str]) -> Tensor:
    """Σ z."""
    return evidence.z(names).sum(0)


def largest(evidence: Evidence, names: Sequence[str]) -> Tensor:
    """The largest z."""
    return evidence.z(names).amax(0)


def judge(evidence: Evidence, names: Sequence[str]) -> Tensor:
    """√Σ max(0, z)², as `flare.Reference.verdict` computes it: only what speaks against a sample counts."""
    return evidence.reference.verdict({name: evidence.scores[name] for name in names}).z


def weigh(evidence: Evidence, names: Sequence[str]) -> Tensor:
    """√Σ r·max(0, z)² with the repeatability r, or the largest z if none is positive."""
    z = evidence.z(names)
    r = torch.tensor([evidence.repeatability.get(name, 1.0) for name in names], dtype=z.dtype)
    together = (r[:, None] * z.clamp(min=0).square()).sum(0).sqrt()
    return torch.where(z.amax(0) > 0, together, z.amax(0))


Rule = tuple[Callable[[Evidence, Sequence[str]], Tensor], tuple[str, ...]]
_SUMS = [names for count in (2, 3, 4) for names in combinations(FOUR, count)]


def without(name: str) -> str:
    """The candidate that has all scores of the verdict but one."""
    return f"Σ max(0, z)² of {' + '.join(each for each in FOUR if each != name)}"


#: candidate -> how its scores are combined, and which
CANDIDATES: dict[str, Rule] = {
    **{name: (judge, (name,)) for name in FOUR},
    **{f"Σ max(0, z)² of {' + '.join(names)}": (judge, names) for names in _SUMS},
    **{f"Σ z of {' + '.join(names)}": (add, names) for names in _SUMS},
    "max of z of all four": (largest, FOUR),
    "Σ max(0, z)² of all four, weighted by repeatability": (weigh, FOUR),
    "Σ max(0, z)² of all four, influence centered": (judge, (NEIGHBORS, ACTIVATIONS, EPISTEMIC, CENTERED)),
    OLD: (add, (NORM, NEIGHBORS)),
}
DATA_ALONE = f"Σ max(0, z)² of {NEIGHBORS} + {ACTIVATIONS}"  # the verdict without a posterior


def rank_all(evidence: Evidence) -> dict[str, Tensor]:
    """What every candidate says, (n,) each; a single score as it is."""
    return {
        label: evidence.scores[label] if label in FOUR else how(evidence, names)
        for label, (how, names) in CANDIDATES.items()
        if all(name in evidence.scores for name in names)
    }
