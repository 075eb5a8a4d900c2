"""Distance to the nearest real samples: a score that asks the data instead of the model.

It alone sees that a model is wrong where it is sure. A distance that is too small means a copy.

scikit-learn finds candidates by matrix products, from ‖a − b‖² = ‖a‖² + ‖b‖² − 2·aᵀb. The rounding error of
this sum is large next to the distance of a near copy, so the distances of the candidates are computed again
from the differences a − b. Where rounding could have hidden a neighbor, all distances of that sample are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from ..core.conditions import Cond
from ..core.validation import require_positive_int, require_samples
from .renoising import Renoising
from .score import SCORES, Score

Features = Callable[[Tensor], Tensor]
NEAREST = 5  # neighbors of a sample
FEATURE_BATCH = 256  # samples per call of `features`
_SPARE = 8  # candidates in addition to the k nearest
_TOLERANCE = 1e-9  # relative error of a squared distance that rounding may cause
_ROWS = 64  # samples whose distances to all data are in memory at once


class Neighbors(NamedTuple):
    """The nearest real samples of n samples; lost samples have distance NaN and index −1.

    Attributes:
        distances: Euclidean distances to the k nearest, in increasing order, (n, k) float64.
        indices: Their rows in the data, (n, k); of equal distances, the first row.
    """

    distances: Tensor
    indices: Tensor

    @property
    def score(self) -> Tensor:
        """Mean distance to the k nearest, (n,); higher means less trustworthy."""
        return self.distances.mean(1)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training samples that other samples are compared with.

    Attributes:
        samples: The samples, (K, *shape).
        rows: Their rows in the user's data, (K,).
        features: Maps samples to the features between which distances are measured; None for the samples.
        copy_distance: The smallest distance of a reference sample to these; a sample that is nearer looks
            like a copy.
    """

    samples: Tensor
    rows: Tensor
    features: Features | None = None
    copy_distance: float = 0.0

    @cached_property
    def points(self) -> Tensor:
        """The features of the samples, (K, d), computed once."""
        return compute_features("data", self.samples, self.features)

    def find(self, x: Tensor, k: int = NEAREST) -> Neighbors:
        """The k nearest of these to finite samples x (n, *shape)."""
        points = compute_features("samples", x.cpu(), self.features)
        return Neighbors(*map(torch.from_numpy, _search(points.numpy(), self._index, k)))

    @cached_property
    def _index(self) -> NearestNeighbors:
        return NearestNeighbors(algorithm="brute").fit(self.points.numpy())

    def __len__(self) -> int:
        return len(self.samples)


@torch.no_grad()
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
        features: Maps a batch (B, *shape) to features (B, d), between which distances are measured; by
            default distances are measured between the samples themselves.
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
        training = TrainingData(data, torch.arange(len(data)), features)
        distances[found], indices[found] = training.find(samples[found], k)
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


def _search(x: Any, index: NearestNeighbors, k: int) -> tuple[Any, Any]:
    """The k rows of the index nearest to each row of x (n, d): distances and rows, (n, k)."""
    data = index._fit_X
    count = min(k + _SPARE, len(data))
    rough, candidates = index.kneighbors(x, count)
    candidates.sort(axis=1)  # ties go to the first row
    distances = np.stack(
        [np.linalg.norm(x.astype(np.float64) - data[rows], axis=1) for rows in candidates.T], axis=1
    )
    order = distances.argsort(axis=1, kind="stable")[:, :k]
    distances, indices = (np.take_along_axis(each, order, axis=1) for each in (distances, candidates))
    if count == len(data):
        return distances, indices
    # a row that is no candidate is as far as the last candidate, up to the error of rounding
    squares = [np.square(each, dtype=np.float64).sum(1) for each in (x, data)]
    error = 4 * (x.shape[1] + 8) * np.finfo(np.float64).eps * (squares[0][:, None] + squares[1].max())
    exact = distances**2
    hidden = (exact > np.square(rough[:, -1:], dtype=np.float64) - error) & (2 * error > _TOLERANCE * exact)
    for rows in np.array_split(hidden.any(1).nonzero()[0], range(_ROWS, hidden.any(1).sum(), _ROWS)):
        all_of_them = cdist(x[rows], data)
        indices[rows] = all_of_them.argsort(axis=1, kind="stable")[:, :k]
        distances[rows] = np.take_along_axis(all_of_them, indices[rows], axis=1)
    return distances, indices


def _score(x: Tensor, cond: Cond, null: Cond | None, at: Renoising) -> Tensor:
    assert at.training is not None
    return at.training.find(x).score.to(x.device)


SCORES.register(
    Score(
        "neighbors",
        "how far the sample is from the nearest training samples; no network",
        of_samples=_score,
        of_existing=True,
        needs_posterior=False,
        needs_data=True,
    )
)
