"""The filter: keep the most plausible share of every region of the data.

Ranking alone favors the regions that the model knows best, so rare classes shrink. With the same share of
every region, each keeps its weight. Regions are the cells of a k-means clustering of the data. They are found
once, and every sample belongs to the nearest center.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

REGIONS = 16  # a few more than the classes that must survive
_ROWS = 400 * REGIONS  # real samples that define the regions
_ROWS_PER_REGION = 10  # at least: few samples have fewer regions


class Mask(Tensor):
    """A mask of samples, (n,) bool, which also selects rows of a pandas table: `df[mask]`, `df[~mask]`.

    pandas does not accept tensors as masks, but it accepts callables and passes them the table.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # operations give plain tensors

    def __call__(self, table: object) -> NDArray[np.bool_]:
        """The mask as an array."""
        return self.cpu().numpy()

    def __invert__(self) -> Mask:
        return super().__invert__().as_subclass(Mask)

    def __and__(self, other: Any) -> Mask:
        return super().__and__(other).as_subclass(Mask)

    def __or__(self, other: Any) -> Mask:
        return super().__or__(other).as_subclass(Mask)

    def __deepcopy__(self, memo: Any) -> Mask:
        return self.clone().as_subclass(Mask)

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))


def keep_best(ranking: Tensor, share: float, regions: Tensor | None = None) -> Tensor:
    """Mask of the most plausible share of every region, (n,) bool.

    Exactly max(1, round(share·m)) of the m samples with a ranking are kept. A region with m_r of them gets
    ⌊share·m_r⌋ seats, and the remaining seats go to the regions with the largest remainders; among equal
    remainders, to the region whose next sample is the most plausible.

    >>> keep_best(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, torch.tensor([0, 0, 1, 1]))
    tensor([ True, False,  True, False])

    Args:
        ranking: Finite numbers (n,), the most plausible samples lowest, and NaN for lost samples, which are
            never kept. Ties are broken by index.
        share: Share of the samples to keep, in (0, 1].
        regions: Integer labels (n,); by default all samples are one region.
    """
    if infinite := int(ranking.isinf().sum()):
        raise ValueError(
            f"scores must be finite, or NaN for lost samples; {infinite} of {len(ranking)} scores are "
            "infinite."
        )
    order = ranking.argsort(stable=True)
    order = order[~ranking[order].isnan()]
    if not len(order):
        raise ValueError(f"all {len(ranking)} scores are NaN: there is nothing to keep.")
    labels = torch.zeros_like(order) if regions is None else regions.to(order.device)[order]
    places = [(labels == label).nonzero().flatten() for label in labels.unique()]  # in `order`, per region
    exact = [round(share * len(own), 9) for own in places]  # equal remainders must not differ by rounding
    seats = [math.floor(number) for number in exact]

    def claim(region: int) -> tuple[float, int]:
        own, taken = places[region], seats[region]
        return round(taken - exact[region], 9), int(own[taken]) if taken < len(own) else len(order)

    left = max(1, round(share * len(order))) - sum(seats)
    for region in sorted(range(len(places)), key=claim)[:left]:
        seats[region] += 1
    mask = torch.zeros(len(ranking), dtype=torch.bool, device=ranking.device)
    for own, count in zip(places, seats, strict=True):
        mask[order[own[:count]]] = True
    return mask


def find_regions(data: Tensor, seed: int = 0, count: int = REGIONS) -> Tensor:
    """Centers of the regions of real data, (k, d) float64, by k-means.

    Lloyd's algorithm runs in float64 on one thread, so the centers do not depend on the number of threads.
    Their last digits may depend on the machine: save the centers to find the same regions elsewhere.

    Args:
        data: Finite real samples (N, *shape), or their features. At most 6,400 random ones are used.
        seed: Random seed for the initial centers and the choice of samples.
        count: Number of regions, reduced to one per ten samples if there are few of them.
    """
    data = data.detach().flatten(1).cpu()
    if len(data) > _ROWS:
        data = data[np.sort(np.random.default_rng(seed).choice(len(data), _ROWS, replace=False))]
    points = np.array(data.numpy(), dtype=np.float64)  # a copy, which k-means may overwrite
    count = max(1, min(count, len(points) // _ROWS_PER_REGION))
    kmeans = KMeans(count, n_init=4, max_iter=100, random_state=seed, algorithm="lloyd", copy_x=False)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than centers
        centers = kmeans.fit(points).cluster_centers_
    return torch.from_numpy(np.unique(centers, axis=0))


def assign_regions(samples: Tensor, centers: Tensor) -> Tensor:
    """Index of the nearest center of each sample, (n,) int64, and −1 for lost samples.

    Args:
        samples: Samples (n, *shape), or the features that the regions were found in.
        centers: Output of `find_regions`, (k, d).
    """
    flat = samples.detach().flatten(1).cpu().double()
    found = flat.isfinite().all(1)
    labels = torch.full((len(flat),), -1)
    if found.any():
        origin = centers.mean(0)  # distances far from 0 would cancel
        nearest = pairwise_distances_argmin((flat[found] - origin).numpy(), (centers - origin).numpy())
        labels[found] = torch.from_numpy(nearest)
    return labels


def require_share(name: str, value: float, *, below_one: bool = False) -> None:
    """Raise unless a share lies in (0, 1], or in (0, 1); a percentage is recognized.

    >>> require_share("keep", 50)
    Traceback (most recent call last):
    ValueError: keep must lie in (0, 1], got 50; did you mean 0.5?
    """
    if not 0 < value <= 1 or (below_one and value == 1):
        hint = f"; did you mean {value / 100:g}?" if 1 < value <= 100 else "."
        raise ValueError(f"{name} must lie in (0, 1{')' if below_one else ']'}, got {value}{hint}")
