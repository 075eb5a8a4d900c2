"""Distance to the nearest real samples: a score that uses only data, not the model.

Only this score finds mistakes that the model makes with confidence. A very small distance indicates a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.precision import no_autocast
from ..core.validation import require_positive_int, require_samples
from .score import SCORES, Score
from .space import FEATURES, NEAREST, Neighbors, Space, sketch

Features = Callable[[Tensor], Tensor]
FEATURE_BATCH = 256  # samples per call of `features`
NEIGHBORS = "neighbors"
LARGEST = 2**28  # bytes of training samples that are kept; more are kept as features only
_SEED = 0  # of the sketch


@torch.no_grad()
@no_autocast()
def neighbors(
    samples: Tensor, data: Tensor, k: int = NEAREST, *, features: Features | None = None
) -> Neighbors:
    """Find the k nearest real samples of each sample; `.score` is the mean distance to them.

    >>> real = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> found = flare.scores.neighbors(torch.tensor([[0.0, 0.0]]), real, k=2)
    >>> found.score, found.indices
    (tensor([3.], dtype=torch.float64), tensor([[1, 0]]))

    Args:
        samples: The samples, (n, *shape); rows with NaN or infinity are lost and get NaN.
        data: Real samples (N, *shape), usually the training data.
        k: The number of neighbors.
        features: A function that maps a batch (B, *shape) to features (B, d). Distances are then measured
            between features instead of samples.
    """
    data = require_samples("data", data).detach().cpu()
    samples = torch.as_tensor(samples).detach().cpu()
    if samples.shape[1:] != data.shape[1:] or samples.ndim < 2:
        raise ValueError(
            f"samples must have shape (n, {str(tuple(data.shape[1:]))[1:-1].rstrip(',')}), like the data, "
            f"got {tuple(samples.shape)}."
        )
    if require_positive_int("k", k) > len(data):
        raise ValueError(
            f"k must be at most the number of possible neighbors, {len(data)}, got {k}; give more data or a "
            "smaller k."
        )
    found = samples.isfinite().flatten(1).all(1)
    distances = torch.full((len(samples), k), torch.nan, dtype=torch.float64)
    indices = torch.full((len(samples), k), -1)
    if found.any():
        space = Space(compute_features("data", data, features))
        distances[found], indices[found] = space.find(
            compute_features("samples", samples[found], features), k
        )
    return Neighbors(distances, indices)


def compute_features(what: str, x: Tensor, features: Features | None) -> Tensor:
    """Features of samples, (n, d), or the samples themselves, flattened; at least float32."""
    if features is None:
        return x.flatten(1).to(torch.promote_types(x.dtype, torch.float32))
    found = []
    for batch in x.split(FEATURE_BATCH):
        value = features(batch)
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != len(batch):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"features must map a batch of {len(batch)} samples to a tensor ({len(batch)}, d), got {got}."
            )
        found.append(value.detach().flatten(1).cpu())
    values = require_samples(f"features({what})", torch.cat(found))
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training samples: the samples themselves, and their points in the space of each score.

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
        """These rows of the data, with only the space of `neighbors`; large samples are kept as features."""
        if len(rows) * data[0].numel() * data.element_size() <= LARGEST:
            samples = data[rows]
            points = compute_features("data", samples, features)
            points = points if features is None else sketch(points, FEATURES, _SEED)
            return cls({NEIGHBORS: Space(points)}, rows, samples, features)
        parts = (compute_features("data", data[some], features) for some in rows.split(FEATURE_BATCH))
        points = torch.cat([sketch(part, FEATURES, _SEED) for part in parts])
        return cls({NEIGHBORS: Space(points)}, rows, None, features)

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


SCORES.register(
    Score(
        NEIGHBORS,
        "how far the sample is from the nearest training samples; no network",
        of_existing=True,
        needs_posterior=False,
        needs_data=True,
    )
)
