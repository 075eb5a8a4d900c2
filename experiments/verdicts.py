"""The verdict on samples of a benchmark, compared with real data that no model saw."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import flare
from flare import bench

REFERENCE = 1_000  # real samples that the scores are compared with
SEED = 3  # of the real samples; others are used for the truth and for distances


class Verdicts:
    """How plausible samples of a model are, compared with real data: a `flare.Scorer` of a given posterior.

    Args:
        model: the network and its training data.
        posterior: over its parameters.
        real: real samples that it was not trained on.
    """

    def __init__(self, model: bench.Benchmark, posterior: Any, real: Tensor) -> None:
        self.scorer = flare.fit(model, model.data, held_out=real, posterior=posterior, check=False, seed=SEED)
        self.reference = self.scorer.reference

    @classmethod
    def of(cls, truth: str, model: bench.Benchmark, posterior: Any, count: int) -> Verdicts:
        """With real samples of a benchmark; fewer for a fit of few pairs."""
        return cls(model, posterior, bench.datasets.make(truth, min(REFERENCE, count), seed=SEED))

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """The scores that the verdict is made of, (n,) each."""
        return dict(self.scorer.score(x).scores)

    def typical(self, share: float) -> float:
        """The z that this share of the real samples stays below."""
        return float(self.reference.verdict(self.reference.scores).z.quantile(share))
