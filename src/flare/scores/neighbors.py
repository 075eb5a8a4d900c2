"""Distance to the nearest real samples: a score that asks the data instead of the model.

It alone sees that a model is wrong where it is sure. A distance that is too small means a copy.

The search is exact and runs in chunks. Matrix products find candidates for each sample, from
‖a − b‖² = ‖a‖² + ‖b‖² − 2·aᵀb. The rounding error of this sum is large next to the distance of a near copy,
so the distances of the candidates are computed again from the differences a − b. Where rounding could have
hidden a neighbor, all distances of that sample are computed from the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.validation import require_positive_int, require_samples

Features = Callable[[Tensor], Tensor]
_SPARE = 8  # candidates in addition to the k nearest
_ROWS, _NUMBERS = 2048, 2**22  # upper bounds of the rows of a chunk, and of its float64 numbers
_TOLERANCE = 1e-9  # relative error of a squared distance that rounding may cause


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The nearest real samples of n samples; lost samples have distance NaN and index −1.

    Attributes:
        distances: Euclidean distances to the k nearest, in increasing order, (n, k) float64.
        indices: which rows of the data they are, (n, k); one of them if distances are equal.
    """

    distances: Tensor
    indices: Tensor

    @property
    def score(self) -> Tensor:
        """Mean distance to the k nearest, (n,); higher means less trustworthy."""
        return self.distances.mean(1)

    @property
    def distance(self) -> Tensor:
        """Distance to the nearest, (n,)."""
        return self.distances[:, 0]

    @property
    def index(self) -> Tensor:
        """Which row of the data is the nearest, (n,)."""
        return self.indices[:, 0]

    def copies(self, held_out: Neighbors) -> Tensor:
        """Mask of the samples that are nearer to the data than held-out real data ever is, (n,) bool.

        Of fresh real samples, at most 1 in m + 1 is called a copy, on average, with m held-out samples. None
        is if a held-out sample is itself in the data.

        Args:
            held_out: the neighbors of real samples, among the same data, that the model was not trained on.
        """
        distance = held_out.distance[~held_out.distance.isnan()]
        if not len(distance):
            raise ValueError("held_out has no distances: all of its samples are lost. Give finite samples.")
        return self.distance < distance.min().to(self.distance.device)


@torch.no_grad()
def neighbors(
    samples: Tensor,
    data: Tensor,
    k: int = 5,
    *,
    features: Features | None = None,
    exclude_self: bool | Tensor = False,
    batch_size: int = 256,
) -> Neighbors:
    """Find the k nearest real samples of each sample; `.score` is the mean distance to them.

    >>> real = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> found = flare.neighbors(torch.tensor([[0.0, 0.0]]), real, k=2)
    >>> found.score, found.index
    (tensor([3.], dtype=torch.float64), tensor([1]))

    Args:
        samples: (n, *shape); rows with NaN or infinity are lost and get NaN.
        data: real samples (N, *shape), usually the training data.
        k: how many neighbors.
        features: maps a batch (B, *shape) to features (B, ...), between which distances are measured; by
            default distances are measured between the samples themselves.
        exclude_self: leave each sample out of its own neighbors: True if `samples` are `data`, row by row, or
            the row of `data` that each sample is, (n,) integers, and −1 for samples that are not in the data.
            Without it, training data that is scored against itself looks too near.
        batch_size: samples per call of `features`.
    """
    data = require_samples("data", data)
    samples = torch.as_tensor(samples)
    if samples.shape[1:] != data.shape[1:] or samples.ndim < 2:
        raise ValueError(
            f"samples must have shape (n, {str(tuple(data.shape[1:]))[1:-1].rstrip(',')}), like the data, "
            f"got {tuple(samples.shape)}."
        )
    own = _find_own_rows(exclude_self, len(samples), len(data))
    available = len(data) - int(own is not None)
    if require_positive_int("k", k) > available:
        raise ValueError(
            f"k must be at most the number of possible neighbors, {available}, got {k}; give more data or a "
            "smaller k."
        )
    found = samples.isfinite().flatten(1).all(1)
    distances = torch.full((len(samples), k), torch.nan, dtype=torch.float64, device=samples.device)
    indices = torch.full((len(samples), k), -1, device=samples.device)
    if len(samples) and not found.any():
        return Neighbors(distances, indices)
    points = compute_features("samples", require_samples("samples", samples[found]), features, batch_size)
    index = _Index(compute_features("data", data, features, batch_size).to(points.device))
    rows = found.nonzero().flatten()
    for batch in _chunks(points):
        kept = rows[batch]
        left_out = None if own is None else own.to(samples.device)[kept]
        distances[kept], indices[kept] = index.search(points[batch].double(), k, left_out)
    return Neighbors(distances, indices)


class _Index:
    """Rows to search, with what the products need of them.

    Args:
        data: (N, d), in any floating-point type; it is converted to float64 in chunks.
    """

    def __init__(self, data: Tensor) -> None:
        self.data = data
        self.center = data.mean(0, dtype=torch.float64)  # vectors from the center lose fewer digits
        self.squares = torch.cat([self._shift(data[rows]).square().sum(1) for rows in _chunks(data)])

    def search(self, x: Tensor, k: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """Find the k rows nearest to each row of x (B, d): distances and indices (B, k).

        Args:
            x: float64.
            k: at most N, or N − 1 with `own`.
            own: the row that each row of x leaves out, (B,), or −1.
        """
        shifted = self._shift(x)
        squares = shifted.square().sum(1, keepdim=True)

        room = x.new_empty(len(x) * min(_ROWS, len(self.data)))  # new memory for each chunk would be slow

        def from_products(rows: slice) -> Tensor:
            """‖b‖² − 2·aᵀb."""
            there = self._shift(self.data[rows]).T
            out = room[: len(x) * there.shape[1]].view(len(x), -1)
            return torch.addmm(self.squares[rows], shifted, there, alpha=-2, out=out)

        count = min(k + _SPARE, len(self.data))
        values, candidates = self._find_smallest(from_products, count, own)
        values += squares
        distances, indices = self._measure(x, candidates, k, own)
        if count == len(self.data):
            return distances, indices
        # a row that is no candidate is as far as the last candidate, up to the error of rounding
        error = 4 * (x.shape[1] + 8) * torch.finfo(torch.float64).eps * (squares + self.squares.max())
        exact = distances.square()
        uncertain = (exact > values[:, -1:] - error) & (2 * error > _TOLERANCE * exact)
        if (again := uncertain.any(1).nonzero().flatten()).numel():
            x, own = x[again], None if own is None else own[again]

            def from_differences(rows: slice) -> Tensor:
                chunk = self.data[rows].double()
                return torch.cdist(x, chunk, compute_mode="donot_use_mm_for_euclid_dist")

            _, candidates = self._find_smallest(from_differences, k, own)
            distances[again], indices[again] = self._measure(x, candidates, k, own)
        return distances, indices

    def _shift(self, x: Tensor) -> Tensor:
        return x.double() - self.center

    def _find_smallest(
        self, compute: Callable[[slice], Tensor], count: int, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The `count` smallest of what `compute` gives for chunks of rows, (B, C) each, and their rows."""
        found = []
        for rows in _chunks(self.data):
            values = compute(rows)
            if own is not None:
                here = ((own >= rows.start) & (own < rows.stop)).nonzero().flatten()
                values[here, own[here] - rows.start] = torch.inf
            values, places = values.topk(min(count, values.shape[1]), largest=False)
            found.append((values, places + rows.start))
        values, indices = (torch.cat(each, 1) for each in zip(*found, strict=True))
        values, places = values.topk(count, largest=False)
        return values, indices.gather(1, places)

    def _measure(self, x: Tensor, candidates: Tensor, k: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """The k nearest of the candidates (B, count), by differences in float64."""
        candidates = candidates.sort(1).values  # ties go to the first row
        squares = [(x - self.data[rows].double()).square().sum(1) for rows in candidates.T]
        distances = torch.stack(squares, 1).sqrt()
        if own is not None:
            distances = distances.masked_fill(candidates == own[:, None], torch.inf)
        distances, order = distances.sort(dim=1, stable=True)
        return distances[:, :k], candidates.gather(1, order)[:, :k]


def _chunks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of x (n, d) that bound the memory."""
    size = max(1, min(_ROWS, _NUMBERS // x.shape[1]))
    return (slice(first, min(first + size, len(x))) for first in range(0, len(x), size))


def compute_features(what: str, x: Tensor, features: Features | None, batch_size: int) -> Tensor:
    """Features of samples, (n, d), or the samples themselves."""
    if features is None:
        return x.flatten(1)
    found = []
    for batch in x.split(require_positive_int("batch_size", batch_size)):
        value = features(batch)
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != len(batch):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"features must map a batch of {len(batch)} samples to a tensor ({len(batch)}, d), got {got}."
            )
        found.append(value.flatten(1))
    return require_samples(f"features({what})", torch.cat(found))


def _find_own_rows(exclude_self: bool | Tensor, n: int, size: int) -> Tensor | None:
    """The row of the data that each sample is, (n,), or −1; None if nothing is left out."""
    if isinstance(exclude_self, bool):
        if exclude_self and n != size:
            raise ValueError(
                f"exclude_self=True needs samples that are the data, row by row; got {n} samples and {size} "
                "rows of data. Give the row of the data that each sample is, or −1."
            )
        return torch.arange(n) if exclude_self else None
    own = torch.as_tensor(exclude_self)
    if own.shape != (n,) or own.is_floating_point() or own.dtype == torch.bool:
        raise ValueError(
            f"exclude_self must be True, False or integers of shape ({n},), one row of the data per sample, "
            f"got {own.dtype} of shape {tuple(own.shape)}."
        )
    if n and (own.min() < -1 or own.max() >= size):
        raise ValueError(
            f"exclude_self must hold rows of the data, 0 to {size - 1}, or −1, "
            f"got {own.min()} to {own.max()}."
        )
    return own
