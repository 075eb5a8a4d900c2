"""Issues of the samples, one kind at a time, in the style of data-quality tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import hypergeom
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from ..results.result import Result
from .sentences import REASONS

COMPARED = 4_000  # samples that are compared with each other
CLOSE = 0.5  # near duplicates are nearer than this share of the smallest distance from real to training data
LEVEL = 0.01  # probability that chance alone makes a page name a region
FACTOR = 1.5  # smaller deviations of a region do not matter, even if significant


class Issue(NamedTuple):
    """A kind of issue, with the samples that have it.

    Attributes:
        title: What it is.
        amount: How often it occurs, in words; empty if it does not occur.
        note: How it is defined.
        samples: Indices of the samples in the caller's result, the most doubtful first.
    """

    title: str
    amount: str
    note: str
    samples: list[int]


def find_issues(
    result: Result, ranking: Tensor, alpha: float, places: Tensor, twins: Tensor | None, lost: Sequence[str]
) -> list[Issue]:
    """All kinds of issues, including those that do not occur.

    Args:
        result: Samples without lost ones.
        ranking: Their ranking (n,), higher for more doubtful samples.
        alpha: Largest p-value of doubtful samples.
        places: Their indices in the caller's result, (n,).
        twins: Output of `find_twins`.
        lost: Names of the lost samples.
    """
    n, found = len(result), []
    worst = ranking.argsort(descending=True, stable=True)

    def add(title: str, mask: Tensor, note: str) -> None:
        own = places[worst[mask[worst]]].tolist()
        found.append(Issue(title, f"{len(own):,} of {n:,} samples" if own else "", note, own))

    if (verdict := result.verdict) is not None:
        doubtful = verdict.p_value <= alpha
        for score in verdict.p_values:
            why = torch.tensor([reason == score for reason in verdict.reason])
            title = REASONS.get(score, score)
            note = f"Doubtful samples (p ≤ {alpha:g}) for which {score} has the largest z-score."
            add(title[0].upper() + title[1:], doubtful & why, note)
        if verdict.copies is not None:
            note = "Closer to a training sample than any real sample."
            add("Near copies of training data", verdict.copies.cpu(), note)
    if twins is not None:
        note = "Closer to another sample than half the smallest distance from real data to training data."
        if n > COMPARED:
            note += f" Only the first {COMPARED:,} samples are compared."
        add("Near duplicates among the samples", twins >= 0, note)
    counts, regions = result.about.get("region_counts", ()), result.regions
    if regions is not None and int(regions.max()) < len(counts):
        found += _compare_regions(regions.cpu()[worst], places[worst], torch.tensor(counts))
    listed = ", ".join(lost[:6]) + (", …" if len(lost) > 6 else "")
    total = f"{len(lost):,} of {n + len(lost):,} samples" if lost else ""
    return [*found, Issue("Lost to NaN or infinity", total, f"{listed}.", [])]


def find_twins(result: Result, places: Tensor) -> Tensor | None:
    """The index of the nearest other sample, if it is within `CLOSE` of `about["copy_distance"]`, or −1.

    The first `COMPARED` samples are compared. None if the distance between real and training data is unknown.

    Args:
        result: A result. For anything else, the function returns None.
        places: Indices of finite samples of the result, (n,).
    """
    distance = result.about.get("copy_distance") if isinstance(result, Result) else None
    if not distance:
        return None
    twins = torch.full((len(places),), -1)
    few = places[:COMPARED]
    if len(few) > 1:
        flat = result.samples[few.to(result.samples.device)].detach().flatten(1).cpu().double().numpy()
        near, which = NearestNeighbors(n_neighbors=1).fit(flat).kneighbors()
        close = torch.from_numpy(near[:, 0] < CLOSE * distance)
        twins[: len(few)] = few[torch.from_numpy(which[:, 0])].masked_fill(~close, -1)
    return twins


def _compare_regions(regions: Tensor, places: Tensor, real: Tensor) -> list[Issue]:
    """Regions with too few or too many samples, compared with the held-out real data in each.

    This is Fisher's exact test: if samples and real data had the same distribution, the samples of a region
    would be a random part of its members. Each of the 2·k tests of k regions has the level `LEVEL` / (2·k).
    """
    own, others = regions.bincount(minlength=len(real)).numpy(), real.numpy()
    n, size = own.sum(), others.sum()
    expected = n * others / size
    law = hypergeom(n + size, own + others, n)
    limit = LEVEL / (2 * len(real))
    few = (law.cdf(own) < limit) & (own * FACTOR < expected)
    many = (law.sf(own - 1) < limit) & (own > FACTOR * expected)
    rule = (
        f"The number is off by a factor of at least {FACTOR:g}, and the difference is significant at "
        f"{LEVEL:.0%} (Fisher’s exact test)."
    )
    found = []
    for word, odd in (("few", few), ("many", many)):
        which = np.flatnonzero(odd)
        listed = "; ".join(f"region {k}: {own[k]:,} samples, {expected[k]:,.0f} expected" for k in which)
        count = f"{len(which)} of {len(real)} regions" if len(which) else ""
        inside = torch.isin(regions, torch.from_numpy(which))
        found.append(
            Issue(f"Regions with too {word} samples", count, f"{listed}. {rule}", places[inside].tolist())
        )
    return found
