"""The judge of a scorer: influence and neighbors of samples, compared with the same of real data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..core.conditions import Cond, take_rows
from ..core.memory import BatchSize
from ..core.warn import warn
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..results.reference import Reference
from ..results.result import Result
from ..results.verdict import Verdict
from ..sampling.existing import score
from ..scores.neighbors import Features, Neighbors, compute_features, neighbors
from .choosing import NEAREST, SCORES

FEATURE_BATCH = 256  # samples per call of `features`


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training samples that `neighbors` compares with.

    Attributes:
        samples: (K, *shape).
        rows: which rows of the user's data they are, (K,).
        features: maps samples to what distances are measured between; None for the samples themselves.
        copy_distance: the smallest distance of a reference sample to these; a sample that is nearer looks
            like a copy.
    """

    samples: Tensor
    rows: Tensor
    features: Features | None = None
    copy_distance: float = 0.0

    @cached_property
    def points(self) -> Tensor:
        """The features of the samples, (K, d), computed once."""
        return compute_features("data", self.samples, self.features, FEATURE_BATCH)

    def find(self, x: Tensor) -> Neighbors:
        """The nearest of these to finite samples x (n, *shape)."""
        return neighbors(
            compute_features("samples", x.cpu(), self.features, FEATURE_BATCH), self.points, NEAREST
        )

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, eq=False)
class Judge:
    """Scores samples and compares the scores with those of real data.

    Attributes:
        denoiser: the network.
        posterior: over its parameters.
        schedule: the noise levels.
        training: the training data; None to judge by the influence alone.
        seed: of the noise that the influence adds, the same for all samples and for the reference.
    """

    denoiser: Denoiser
    posterior: Posterior
    schedule: Schedule
    training: TrainingData | None
    seed: int

    def make_reference(self, real: Tensor, cond: Cond | None, held_out: bool) -> tuple[Judge, Reference]:
        """Score real samples; the judge that is returned knows how near they are to the training data."""
        scores, found = self._compute(real, cond, "auto", None)
        judge = self
        if self.training is not None and found is not None:
            near = float(found.distance.min())
            judge = replace(self, training=replace(self.training, copy_distance=near))
        return judge, Reference(scores, held_out)

    def __call__(
        self,
        result: Result,
        reference: Reference,
        cond: Cond | None = None,
        batch_size: BatchSize = "auto",
        memory: int | None = None,
    ) -> Result:
        """The same result with influence, neighbors and the verdict; lost samples are not scored."""
        finite = ~result.lost.cpu()
        scores, verdict = {}, None
        if finite.any():
            rows = finite.nonzero().flatten()
            x = result.samples[rows.to(result.samples.device)]
            found, near = self._compute(x, take_rows(cond, rows), batch_size, memory)
            scores = {name: _spread(value, finite, torch.nan) for name, value in found.items()}
            verdict = self._decide(reference, scores, near, finite)
        else:
            warn(f"all {len(result)} samples have NaN or infinity: none of them is scored.")
            scores = {name: torch.full((len(result),), torch.nan) for name in self.names}
            verdict = reference.verdict(scores)
        return replace(result, scores={**scores, **result.scores}, verdict=verdict, reference=reference)

    @property
    def names(self) -> tuple[str, ...]:
        """The scores that it computes."""
        return SCORES[:1] if self.training is None else SCORES

    def _compute(
        self, x: Tensor, cond: Cond | None, batch_size: BatchSize, memory: int | None
    ) -> tuple[dict[str, Tensor], Neighbors | None]:
        """The scores of finite samples, and their neighbors."""
        pull = score(
            self.denoiser, self.posterior, self.schedule, x,
            score="influence", cond=cond, seed=self.seed, batch_size=batch_size, memory=memory,
        )  # fmt: skip
        scores = {"influence": pull.detach().cpu()}
        if self.training is None:
            return scores, None
        found = self.training.find(x)
        return {**scores, "neighbors": found.score.cpu()}, found

    def _decide(
        self, reference: Reference, scores: dict[str, Tensor], near: Neighbors | None, finite: Tensor
    ) -> Verdict:
        if near is None or self.training is None:
            return reference.verdict(scores)
        copies = _spread(near.distance.cpu() < self.training.copy_distance, finite, fill=False)
        nearest = _spread(self.training.rows[near.index.cpu()], finite, fill=-1)
        return replace(reference.verdict(scores, copies), nearest=nearest)


def _spread(values: Tensor, where: Tensor, fill: float) -> Tensor:
    """Values of the rows `where`, (n,), with `fill` in the other rows."""
    out = torch.full((len(where),), fill, dtype=values.dtype)
    out[where] = values
    return out
