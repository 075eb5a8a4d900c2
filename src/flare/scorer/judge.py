"""How a scorer judges samples: distances to training samples, compared with those of real data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.conditions import Cond, take_rows
from ..core.memory import BatchSize
from ..core.nonfinite import name_samples
from ..core.progress import warn
from ..model import Model
from ..results.filters import assign_regions
from ..results.result import Result
from ..results.verdict import Reference, decide
from ..sampling.distances import compute_distances
from ..scores.encoder import Encoder
from ..scores.space import Neighbors
from ..scores.training_data import NEIGHBORS, TrainingData


@dataclass(frozen=True, eq=False)
class Judge:
    """Compares samples with real ones.

    Attributes:
        model: The network and its noise levels.
        encoder: Maps samples to the features of the scores that need the network.
        training: The training samples, in the space of each score.
        reference: The scores of real data.
        centers: The centers of the regions of the data, (k, d); None if they are not known.
    """

    model: Model
    encoder: Encoder
    training: TrainingData
    reference: Reference
    centers: Tensor | None

    def compute_scores(
        self, x: Tensor, cond: Cond, batch_size: BatchSize = "auto", memory: int | None = None
    ) -> tuple[dict[str, Tensor], Neighbors | None]:
        """The scores of finite samples by name, (n,) each, and their nearest training samples, if known."""
        found, near = {}, None
        if self.training.knows_samples:
            near = self.training.find(x)
            found[NEIGHBORS] = near.score
        encoded = self.encoder.encode(x, cond, batch_size, memory, self.model.learned)
        return found | compute_distances(self.training.spaces, encoded), near

    def judge(self, result: Result, cond: Cond, batch_size: BatchSize, memory: int | None) -> Result:
        """The same result with scores, verdict and regions; lost samples are not scored."""
        finite = ~result.lost.cpu()
        near = None
        if finite.any():
            rows = finite.nonzero().flatten()
            x = result.samples[rows.to(result.samples.device)]
            found, near = self.compute_scores(x, take_rows(cond, rows), batch_size, memory)
            for name, values in found.items():
                if lost := rows[values.isnan()].tolist():
                    warn(f"{name} is not finite for {name_samples(lost, len(result))}: they have no verdict.")
            scores = {name: _spread(found[name], finite, torch.nan) for name in self.reference.scores}
        else:
            warn(f"all {len(result)} samples have NaN or infinity: none of them is scored.")
            scores = {name: torch.full((len(result),), torch.nan) for name in self.reference.scores}
        copies = nearest = None
        if near is not None:
            copies = _spread(near.distances[:, 0] < self.training.copy_distance, finite, fill=False)
            nearest = _spread(self.training.rows[near.indices[:, 0]], finite, fill=-1)
        return replace(
            result,
            scores=scores | dict(result.scores),
            verdict=decide(self.reference, scores, copies, nearest),
            reference=self.reference,
            regions=None if self.centers is None else self._find_regions(result.samples, finite),
        )

    def _find_regions(self, samples: Tensor, finite: Tensor) -> Tensor:
        assert self.centers is not None
        regions = torch.full((len(samples),), -1)
        if finite.any():
            regions[finite] = assign_regions(self._place(samples[finite.to(samples.device)]), self.centers)
        return regions

    def _place(self, x: Tensor) -> Tensor:
        """Samples in the space of the regions: their own, unless the training samples are not kept."""
        return x if self.training.samples is not None else self.training.locate(x)


def _spread(values: Tensor, where: Tensor, fill: float) -> Tensor:
    """Values of the rows `where`, (n,), with `fill` in the other rows."""
    out = torch.full((len(where),), fill, dtype=values.dtype)
    out[where] = values
    return out
