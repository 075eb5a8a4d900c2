"""The data of the page: all scores of all samples, and the pictures of at most a few thousand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.validation import require_positive_int, require_samples
from ..results.filtering import keep_fraction
from ..results.result import Result
from .figures import RAMP, Scale, count_bins, drop_lost, space_evenly
from .packing import pack
from .pictures import Pictures
from .rankings import Ranking, is_held_out, names, rank_by
from .words import REASONS

BUDGET = 4_000_000  # bytes before base64, which adds a third: the page stays under 6 MB
ROWS = 3_000_000  # of these, at most so many for the scores of all samples
ROW, SCORE = 20, 12  # bytes per sample for its index and the like, and for each of its scores
EXTREMES = 6  # the number of best, and of worst, samples that are shown first
GROUPS = 24  # the largest number of groups with a row of their own
LEVELS = (0, 0.001, 0.002, 0.005, *(k / 100 for k in range(1, 21)), *(k / 20 for k in range(5, 20)))


@dataclass(frozen=True, eq=False)
class Options:
    """What `write` was told about the samples; see there."""

    keep: float = 0.5
    alpha: float = 0.05
    score: str | None = None
    limit: int = 2000
    data: Tensor | None = None
    rows: Tensor | None = None
    groups: Tensor | Sequence[object] | None = None
    bad: Tensor | None = None


def payload(result: Result, options: Options) -> dict[str, Any]:
    """Everything the script of the page needs, as JSON values."""
    require_positive_int("limit", options.limit)
    if not 0 < options.alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {options.alpha}.")
    total = len(result)
    if options.bad is not None:
        options = replace(options, bad=_check_mask(options.bad, total))
    groups = None if options.groups is None else _check_groups(options.groups, total)
    result, places = drop_lost(result)
    require_samples("result.samples", result.samples)
    first = rank_by(result, options.score)
    keep_fraction(first.values, options.keep)  # validates `keep`
    rankings, notes = _rankings(result, first)
    if total > len(result):
        notes.append(f"{total - len(result):,} of {total:,} samples were lost to NaN or infinity.")
    most = ROWS // (ROW + SCORE * len(rankings))
    if len(result) > most:
        notes.append(f"This page is of {most:,} of {len(result):,} samples, evenly chosen over the ranks.")
        chosen = _choose_evenly(first, most).sort().values
        result, places = result.select(chosen), places[chosen]
        rankings, _ = _rankings(result, rank_by(result, options.score))
    pictures = Pictures.of(result)
    return {
        "kind": pictures.kind,
        "shape": list(result.samples.shape[1:]),
        "n": len(result),
        "indices": places.tolist(),
        "ramp": RAMP,
        "held_out": is_held_out(result),
        "rankings": [_pack_ranking(ranking) for ranking in rankings],
        "shares": _shares(len(result), options.keep),
        "levels": _levels(options.alpha),
        **_pack_verdict(result),
        **_pack_known(options.bad, groups, places),
        **_pack_pictures(result, rankings, pictures, options),
        "notes": [*pictures.notes, *notes],
    }


def _choose_evenly(ranking: Ranking, count: int) -> Tensor:
    """At most `count` rows, best first, at evenly spaced ranks."""
    order = ranking.values.argsort(stable=True)
    return order[torch.from_numpy(space_evenly(len(order), count))]


def _rankings(result: Result, first: Ranking) -> tuple[list[Ranking], list[str]]:
    """The first ranking and all others; scores that are not finite are left out with a note."""
    found, notes = [first], []
    for name in names(result):
        if name == first.name:
            continue
        try:
            found.append(rank_by(result, name))
        except ValueError as error:
            notes.append(f"The score {name} is left out: {error}")
    return found, notes


def _pack_ranking(ranking: Ranking) -> dict[str, Any]:
    """Values in full precision, so that the page keeps what Python keeps, and p-values as whole numbers.

    A p-value is (1 + count) / (1 + size); the page divides as Python does.
    """
    scale = Scale.of(ranking.values, ranking.real)
    edges = scale.edges(ranking.values, ranking.real)
    packed: dict[str, Any] = {
        "name": ranking.name,
        "label": ranking.label,
        "values": pack(ranking.values, 64),
        "scale": {"low": scale.low, "high": scale.high, "log": scale.log},
        "edges": edges.tolist(),
    }
    if ranking.p_value is not None and ranking.size is not None:
        counts = (ranking.p_value * (ranking.size + 1)).round()
        packed |= {"p": pack(counts, 32), "size": ranking.size}
    if ranking.real is not None:
        packed["real"] = count_bins(ranking.real, edges).tolist()
    return packed


def _shares(n: int, keep: float) -> dict[str, Any]:
    """(fraction, count) at every whole percent and at `keep`, as `keep_fraction` counts."""
    fractions = sorted({percent / 100 for percent in range(1, 101)} | {keep})
    stops = [(fraction, max(1, round(fraction * n))) for fraction in fractions]
    return {"stops": stops, "start": fractions.index(keep)}


def _levels(alpha: float) -> dict[str, Any]:
    """The p-values at which the slider stops; 0 keeps all samples."""
    stops = sorted({*LEVELS, alpha})
    return {"stops": stops, "start": stops.index(alpha)}


def _pack_verdict(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    if verdict is None:
        return {}
    known = list(dict.fromkeys(verdict.reason))
    packed: dict[str, Any] = {
        "reasons": [REASONS.get(name, name) for name in known],
        "reason": [known.index(name) for name in verdict.reason],
    }
    if verdict.copies is not None:
        packed["copies"] = verdict.copies.nonzero().flatten().tolist()
    if verdict.nearest is not None:
        packed["nearest"] = verdict.nearest.tolist()
    return packed


def _pack_known(bad: Tensor | None, groups: list[str] | None, places: Tensor) -> dict[str, Any]:
    """Which samples are known to be bad, and the group of each; small groups are joined."""
    packed: dict[str, Any] = {}
    if bad is not None:
        packed["bad"] = bad[places].nonzero().flatten().tolist()
    if groups is not None:
        own = [groups[i] for i in places.tolist()]
        sizes = Counter(own)
        largest = {name for name, _ in sizes.most_common(GROUPS)}
        shown = [name for name in sorted(sizes, key=_natural) if name in largest]
        place = {name: i for i, name in enumerate(shown)}
        packed["group"] = [place.get(name, len(shown)) for name in own]
        packed["groups"] = shown + (["others"] if len(sizes) > len(shown) else [])
    return packed


def _pack_pictures(
    result: Result, rankings: Sequence[Ranking], pictures: Pictures, options: Options
) -> dict[str, Any]:
    """The pictures of an even choice of ranks, and of the extremes of every ranking."""
    few = min(EXTREMES, max(1, len(result) // 2))
    orders = [ranking.values.argsort(stable=True) for ranking in rankings]
    ends = [end for order in orders for end in (order[:few], order[-few:])]
    left = BUDGET - len(result) * (ROW + SCORE * len(rankings))
    most = left // pictures.count_bytes(options.data is not None) - 2 * few * len(rankings)
    even = _choose_evenly(rankings[0], min(options.limit, max(1, most)))
    extra = torch.cat(ends).unique()
    rows = torch.cat([even, extra[~torch.isin(extra, even)]])
    packed: dict[str, Any] = {"rows": rows.tolist(), "even": len(even), **pictures.pack(rows)}
    if pictures.kind == "points" and result.variance is not None:
        packed["ellipses"] = pack(_second_moments(result)[rows], 32)
    if options.data is not None:
        packed |= _pack_nearest(result, rows, pictures, options)
    return packed


def _pack_nearest(result: Result, rows: Tensor, pictures: Pictures, options: Options) -> dict[str, Any]:
    """The pictures of the nearest training samples of some rows, and which row has which."""
    data = torch.as_tensor(options.data)
    if data.shape[1:] != result.samples.shape[1:]:
        raise ValueError(
            f"data must have samples of shape {tuple(result.samples.shape[1:])}, got {tuple(data.shape[1:])}."
        )
    if result.verdict is None or result.verdict.nearest is None:
        raise ValueError(
            "data shows the nearest training sample of each sample, which only a verdict with `nearest` "
            "knows; judge the samples with flare.fit(...).score, or leave data out."
        )
    nearest = result.verdict.nearest[rows].cpu()
    known = torch.arange(len(data)) if options.rows is None else torch.as_tensor(options.rows).cpu()
    if len(known) != len(data):
        raise ValueError(f"rows must name one row per sample of data, {len(data)}, got {len(known)}.")
    unknown = nearest[~torch.isin(nearest, known)]
    if len(unknown):
        raise ValueError(
            f"the verdict names training sample {int(unknown.max())}, which data does not have: it has "
            f"{len(data)} samples; give the data that the samples were compared with."
        )
    order = known.argsort()
    which, place = order[torch.searchsorted(known[order], nearest)].unique(return_inverse=True)
    return {"real": pictures.pack_real(data[which.to(data.device)]), "real_of": place.tolist()}


def _second_moments(result: Result) -> Tensor:
    """Both variances and the covariance, (n, 3); the covariance is 0 if it was not computed."""
    assert result.variance is not None
    variance = result.variance.detach().cpu().double()
    cross = torch.zeros(len(variance)) if result.covariance is None else result.covariance[:, 0, 1].cpu()
    return torch.cat([variance, cross.double()[:, None]], dim=1)


def _natural(name: str) -> tuple[bool, float, str]:
    """Sort numbers by value, before other names."""
    number = name.lstrip("-").isdigit()
    return (not number, float(name) if number else 0.0, name)


def _check_groups(groups: Tensor | Sequence[object], n: int) -> list[str]:
    found = [str(label) for label in (groups.tolist() if isinstance(groups, Tensor) else groups)]
    if len(found) != n:
        raise ValueError(
            f"groups must have one label per sample, {n}, got {len(found)}; "
            "make them with flare.strata(result.samples)."
        )
    return found


def _check_mask(bad: Tensor, n: int) -> Tensor:
    bad = torch.as_tensor(bad).detach().cpu()
    if bad.shape != (n,) or bad.dtype != torch.bool:
        raise ValueError(
            f"bad must be a bool mask of shape ({n},), one per sample, got {bad.dtype} of shape "
            f"{tuple(bad.shape)}."
        )
    return bad
