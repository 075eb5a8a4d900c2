"""The verdict on samples of a benchmark: influence and neighbors, beside real data that no model saw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench

from .lab import ENCODED, PROFILE_LEVELS

REFERENCE = 1_000  # real samples that the scores are compared with
KEPT_DATA = 20_000  # training samples among which neighbors are sought
SEED = 3  # of the real samples; others are used for the truth and for distances


class Verdicts:
    """How plausible samples of a model are, compared with real data.

    Influence looks at all levels of the error profile, which small networks can afford.

    Args:
        model: the network and its training data.
        posterior: over its parameters.
        real: real samples that it was not trained on.
    """

    def __init__(self, model: bench.Benchmark, posterior: Any, real: Tensor) -> None:
        self.model, self.posterior = model, posterior
        order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(SEED))
        self.data = model.data[order[:KEPT_DATA]]
        self.reference = flare.Reference(self.scores(real))

    @classmethod
    def of(cls, truth: str, model: bench.Benchmark, posterior: Any, count: int) -> Verdicts:
        """With real samples of a benchmark; fewer for a fit of few pairs."""
        return cls(model, posterior, bench.datasets.make(truth, min(REFERENCE, count), seed=SEED))

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """Influence and neighbors, (n,) each."""
        influence = flare.score(
            self.model.denoiser, self.posterior, self.model.schedule, x, score="influence",
            levels=PROFILE_LEVELS, data=self.data[:ENCODED],
        )  # fmt: skip
        return {"influence": influence, "neighbors": flare.scores.neighbors(x, self.data).score}

    def typical(self, share: float) -> float:
        """The z that this share of the real samples stays below."""
        return float(self.reference.verdict(self.reference.scores).z.quantile(share))
