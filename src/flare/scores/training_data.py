"""Training samples that other samples are compared with, in the space of each score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .neighbors import FEATURE_BATCH, Features, compute_features
from .space import FEATURES, Neighbors, Space, sketch

NEIGHBORS = "neighbors"
LARGEST = 2**28  # bytes of training samples that are kept; more are kept as features only
_SEED = 0  # of the sketch


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training samples, as they are and as points in the space of each score.

    Attributes:
        spaces: The points by score. Scores may look at fewer samples than others.
        rows: The rows in the user's data of the points of `neighbors`, (K,).
        samples: The samples of these rows, (K, *shape); None if they are not kept.
        features: Maps samples to the features of `neighbors`; None for the samples themselves.
        copy_distance: The smallest distance of a reference sample to these; a sample that is nearer looks
            like a copy.
    """

    spaces: Mapping[str, Space]
    rows: Tensor
    samples: Tensor | None = None
    features: Features | None = None
    copy_distance: float = 0.0

    @classmethod
    def of(cls, data: Tensor, rows: Tensor, features: Features | None = None) -> TrainingData:
        """These rows of the data with the space of `neighbors` alone; kept as features if they are large."""
        if len(rows) * data[0].numel() * data.element_size() <= LARGEST:
            samples = data[rows]
            points = compute_features("data", samples, features)
            points = points if features is None else sketch(points, FEATURES, _SEED)
            return cls({NEIGHBORS: Space(points)}, rows, samples, features)
        parts = (compute_features("data", data[some], features) for some in rows.split(FEATURE_BATCH))
        points = torch.cat([sketch(part, FEATURES, _SEED) for part in parts])
        return cls({NEIGHBORS: Space(points)}, rows, None, features)

    @property
    def knows_samples(self) -> bool:
        """Whether distances to the samples themselves are known."""
        return NEIGHBORS in self.spaces

    def locate(self, x: Tensor) -> Tensor:
        """Finite samples as points of `neighbors`, (n, p)."""
        points = compute_features("samples", x.cpu(), self.features)
        return sketch(points, self.spaces[NEIGHBORS].points.shape[1], _SEED)

    def find(self, x: Tensor) -> Neighbors:
        """The nearest of these to finite samples x (n, *shape)."""
        return self.spaces[NEIGHBORS].find(self.locate(x))

    def without_samples(self) -> TrainingData:
        """The same without the samples, and without distances to them."""
        spaces = {name: space for name, space in self.spaces.items() if name != NEIGHBORS}
        return TrainingData(spaces, torch.empty(0, dtype=torch.long))
