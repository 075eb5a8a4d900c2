"""Distances between features, and the nearest real samples.

scikit-learn finds candidates: by a tree in few dimensions, else by matrix products, from
‖a − b‖² = ‖a‖² + ‖b‖² − 2·aᵀb. The rounding error of this sum is large next to the distance of a near copy,
so the distances of the candidates are computed again from the differences a − b. Where rounding could have
hidden a neighbor, all distances of that sample are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

NEAREST = 5  # neighbors of a sample
FEATURES = 2048  # the most numbers per sample that are stored for one score
_SPARE = 3  # candidates in addition to the k nearest
_TREE_DIMENSIONS = 6  # up to which a tree finds neighbors faster than matrix products
_TOLERANCE = 1e-9  # relative error of a squared distance that rounding may cause
_ROWS = 64  # samples whose distances to all data are in memory at once
_ENTRIES = 2**20  # of differences to candidates that are in memory at once
_NUMBERS = 2**24  # that are sketched at once
_SAME_RANKS = 0.999  # Spearman correlation above which half precision is enough


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
        """Mean distance to the k nearest, (n,); larger means more doubtful."""
        return self.distances.mean(1)


@dataclass(frozen=True, eq=False)
class Space:
    """Training samples as points, between which a score measures distances.

    Attributes:
        points: The features of the training samples, (K, p), float16 or wider.
        scale: Factors of the features of other samples, (p,); None for 1.
    """

    points: Tensor
    scale: Tensor | None = None

    def find(self, features: Tensor, k: int = NEAREST) -> Neighbors:
        """The k nearest training samples of finite features (n, p)."""
        found = self._index.search(self._place(features).numpy(), min(k, len(self.points)))
        return Neighbors(*map(torch.from_numpy, found))

    def score(self, features: Tensor) -> Tensor:
        """The mean distance to the nearest training samples, (n,); NaN for features that are not finite."""
        found = self._place(features).isfinite().all(1)  # a scale may make large features infinite
        out = torch.full((len(features),), torch.nan, dtype=torch.float64)
        if found.any():
            out[found] = self.find(features[found.to(features.device)]).score
        return out

    def shrink(self, features: Tensor) -> Space:
        """The same space in float16, if that does not change the order of the scores of these features."""
        points = self.points.half()
        if points.dtype == self.points.dtype or len(features) < 2 or not points.isfinite().all():
            return self
        smaller = Space(points, self.scale)
        scores = [space.score(features) for space in (self, smaller)]
        if any(len(own[own.isfinite()].unique()) < 2 for own in scores):
            return self  # there is no order
        agreement = spearmanr(*scores, nan_policy="omit").statistic
        return smaller if agreement >= _SAME_RANKS else self

    def _place(self, features: Tensor) -> Tensor:
        """Features of samples as points, at least float32."""
        if features.shape[1] != self.points.shape[1]:
            raise ValueError(
                f"samples have {features.shape[1]} features, and the training samples "
                f"{self.points.shape[1]}: they come from different encoders. Fit again."
            )
        return _widen(features.cpu() if self.scale is None else features.cpu() * self.scale)

    @cached_property
    def _index(self) -> _Index:
        return _Index(_widen(self.points).numpy())

    def __len__(self) -> int:
        return len(self.points)


def compute_distances(spaces: Mapping[str, Space], encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scores of encoded samples, (n,) each."""
    return {name: space.score(encoded[name]) for name, space in spaces.items() if name in encoded}


def sketch(values: Tensor, size: int, seed: int) -> Tensor:
    """Random signed sums of features (n, p), (n, min(p, size)): distances stay the same on average.

    Every feature is added to one sum, with a random sign, so the map needs no matrix.
    """
    if values.shape[1] <= size:
        return values
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(size, (values.shape[1],), generator=generator).to(values.device)
    signs = torch.randint(2, (values.shape[1],), generator=generator).to(values) * 2 - 1
    parts = values.split(max(1, _NUMBERS // values.shape[1]))  # a copy of all values may not fit in memory
    return torch.cat([part.new_zeros(len(part), size).index_add_(1, places, part * signs) for part in parts])


def _widen(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


class _Index:
    """An exact search among points (K, p), prepared once.

    Attributes:
        data: The points, at least float32.
        tree: Whether a tree finds candidates.
        found: scikit-learn's search: a tree for few dimensions, matrix products for many.
        largest: No point has a larger squared norm, float64.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self.tree = data.shape[1] <= _TREE_DIMENSIONS
        self.found = NearestNeighbors(algorithm="kd_tree" if self.tree else "brute").fit(data)
        # twice as much as its sum of squares, whose rounding error is less than that
        self.largest = 2 * float(np.einsum("ij,ij->i", data, data).max())

    def search(self, x: Any, k: int) -> tuple[Any, Any]:
        """The k points nearest to each row of x (n, p): distances and rows, (n, k)."""
        count = min(k + _SPARE, len(self.data))
        rough, candidates = self.found.kneighbors(x, count)
        candidates.sort(axis=1)  # ties go to the first row
        distances = self._measure(x, candidates)
        order = distances.argsort(axis=1, kind="stable")[:, :k]
        distances, indices = (np.take_along_axis(each, order, axis=1) for each in (distances, candidates))
        if count == len(self.data):
            return distances, indices
        # a row that is no candidate is as far as the last candidate, up to the error of rounding
        own = np.square(x, dtype=np.float64).sum(1)[:, None]
        error = 4 * (x.shape[1] + 8) * np.finfo(np.float64).eps * (own + self.largest)
        exact = distances**2
        last = np.square(rough[:, -1:], dtype=np.float64)
        # of equal distances, a tree finds any row
        hidden = ((exact > last - error) & (self.tree | (2 * error > _TOLERANCE * exact))).any(1).nonzero()[0]
        for rows in (hidden[i : i + _ROWS] for i in range(0, len(hidden), _ROWS)):
            all_of_them = cdist(x[rows], self.data)
            indices[rows] = all_of_them.argsort(axis=1, kind="stable")[:, :k]
            distances[rows] = np.take_along_axis(all_of_them, indices[rows], axis=1)
        return distances, indices

    def _measure(self, x: Any, candidates: Any) -> Any:
        """The distances of each row of x (n, p) to its own candidates (n, c), from differences, float64."""
        found = np.empty(candidates.shape)
        step = max(1, _ENTRIES // (candidates.shape[1] * x.shape[1]))
        for part in (slice(i, i + step) for i in range(0, len(x), step)):
            difference = self.data[candidates[part]].astype(np.float64) - x[part, None]
            found[part] = np.sqrt(np.einsum("ijk,ijk->ij", difference, difference))
        return found
