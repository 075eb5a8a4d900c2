"""Distances between features, and the nearest real samples.

scikit-learn finds candidates: by a tree in few dimensions, else by matrix products, from
‖a − b‖² = ‖a‖² + ‖b‖² − 2·aᵀb. The rounding error of this sum is large next to the distance of a near copy,
so the distances of the candidates are computed again from the differences a − b. If rounding could have
hidden a neighbor, all distances of that sample are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
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
_SAME_RANKS = 0.999  # Spearman correlation with the full distances above which fewer numbers are enough
_AXES = (64, 128, 256)  # principal axes that are tried, fewest first
_AXES_ROWS = 2000  # points that the axes are computed from


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
    """Training samples as points. A score measures distances to them.

    Attributes:
        points: The features of the training samples, (K, p), float16 or wider. With axes: their coordinates
            along the axes, and their distance from the plane that the axes span, (K, r + 1). Distances
            between these are never larger than those between the features.
        scale: Factors of the features of other samples, (p,); None for 1.
        axes: The leading principal axes of the points, (r, p); None if all features are kept.
        center: The mean that the axes start from, (p,).
    """

    points: Tensor
    scale: Tensor | None = None
    axes: Tensor | None = None
    center: Tensor | None = None

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

    def shrink(self, features: Tensor) -> tuple[Space, Tensor]:
        """The same space with fewer numbers, and the scores of these features in it.

        Principal axes and float16 are used if they do not change the order of these scores.
        """
        scores = self.score(features)
        known = scores.isfinite()
        if len(scores[known].unique()) < 2:
            return self, scores  # there is no order
        for smaller in self._smaller():
            if not smaller.points.isfinite().all():
                continue
            found = smaller.score(features)
            if spearmanr(scores[known], found[known]).statistic >= _SAME_RANKS:
                return smaller, found
        return self, scores

    def _smaller(self) -> Iterator[Space]:
        """Spaces with fewer numbers, the smallest first."""
        count = self.points.shape[1]
        sizes = [size for size in _AXES if 2 * size <= min(count, len(self.points))]
        if sizes and self.axes is None and bool((self.points != self.points[0]).any()):
            points = _widen(self.points)
            fit = PCA(sizes[-1], svd_solver="randomized", iterated_power=2, random_state=0)
            fit.fit(points[:_AXES_ROWS].double().numpy())  # whose fifth powers would overflow in float32
            center, axes = (torch.from_numpy(part).to(points) for part in (fit.mean_, fit.components_))
            placed = _project(points, axes, center)
            for size in sizes:  # what lies along the other axes is far from the plane of the first
                rest = torch.linalg.vector_norm(placed[:, size:], dim=1, keepdim=True, dtype=torch.float64)
                near = torch.cat([placed[:, :size], rest.to(placed)], dim=1)
                # axes have the layout of a loaded tensor
                yield Space(near.half(), self.scale, axes[:size].contiguous(), center)
        if self.points.dtype != torch.float16:
            yield replace(self, points=self.points.half())

    def _place(self, features: Tensor) -> Tensor:
        """Features of samples as points, at least float32."""
        expected = self.points.shape[1] if self.axes is None else self.axes.shape[1]
        if features.shape[1] != expected:
            raise ValueError(
                f"samples have {features.shape[1]} features, and the training samples {expected}: they come "
                "from different encoders. Fit again."
            )
        points = _widen(features.cpu() if self.scale is None else features.cpu() * self.scale)
        return points if self.axes is None else _project(points, self.axes, self.center)

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


def _project(points: Tensor, axes: Tensor, center: Tensor | None) -> Tensor:
    """Coordinates of points (n, p) along axes (r, p), and the distance from their plane, (n, r + 1)."""
    assert center is not None
    points = points - center
    along = points @ axes.T
    rest = torch.linalg.vector_norm(points - along @ axes, dim=1, keepdim=True, dtype=torch.float64)
    return torch.cat([along, rest.to(along)], dim=1)


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
        candidates = self.found.kneighbors(x, count, return_distance=False)
        candidates.sort(axis=1)  # ties go to the first row
        distances = self._measure(x, candidates)
        farthest = distances.max(axis=1, keepdims=True)
        order = distances.argsort(axis=1, kind="stable")[:, :k]
        distances, indices = (np.take_along_axis(each, order, axis=1) for each in (distances, candidates))
        if count == len(self.data):
            return distances, indices
        # a row that is no candidate is as far as the farthest candidate, up to the error of rounding
        own = np.square(x, dtype=np.float64).sum(1)[:, None]
        error = 4 * (x.shape[1] + 8) * np.finfo(np.float64).eps * (own + self.largest)
        exact, last = distances**2, farthest**2
        # of equal distances, any row is a candidate
        tied = (distances == farthest) | (2 * error > _TOLERANCE * exact)
        hidden = ((exact > last - error) & (self.tree | tied)).any(1).nonzero()[0]
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
