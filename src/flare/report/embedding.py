"""The data of the page's script, as JSON values: scores of all samples, and pictures of some of them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.validation import require_samples
from ..results.calibration import Design
from ..results.drawing import (
    RAMP,
    Ranking,
    Scale,
    count_bins,
    deviations,
    kind,
    names,
    panels,
    rank_by,
    space_evenly,
)
from ..results.filters import keep_best
from ..results.result import Result
from .issues import Issue
from .sentences import REASONS

BUDGET = 4_000_000  # bytes before base64, which adds a third: the page stays under 6 MB
ROWS = 3_000_000  # bytes of the budget for the scores of all samples
ROW, SCORE = 20, 12  # bytes per sample for its index and the like, and for each of its scores
PICTURES = 2000  # samples with pictures, evenly spaced by rank
EXTREMES = 6  # number of best, and of worst, samples that are shown first, and of examples of an issue
GROUPS = 24  # groups with a separate row
PIXELS = (64, 48, 32)  # longest side of an embedded image: smaller ones if few fit
ENOUGH = 200  # evenly spaced pictures
CHANNELS = 16  # channels of a series that are drawn
STEPS = 64  # points of the step profile
BRIGHTNESS = (0.001, 0.999)  # quantiles that become black and white: one outlier must not darken all others
RISK, CONFIDENCE = 0.05, 0.9  # of the guarantee, as in `flare.calibrate`
Column = np.ndarray[Any, Any]


class Known(NamedTuple):
    """Facts about the samples that are not in the result, with one value per sample each.

    Attributes:
        places: Indices of the samples in the caller's result, (n,), in ascending order.
        names: Names of the samples.
        groups: Labels of the samples.
        bad: Which samples are bad.
        twins: Index of another sample that is nearly the same, and −1 if there is none.
    """

    places: Tensor
    names: Column | None = None
    groups: Column | None = None
    bad: Column | None = None
    twins: Tensor | None = None

    def select(self, rows: Tensor) -> Known:
        """The same facts about a selection of samples."""
        more = (part if part is None else part[rows] for part in self[1:])
        return Known(self.places[rows], *more)  # type: ignore[arg-type]


def embed(
    result: Result,
    known: Known,
    keep: float,
    alpha: float,
    issues: list[Issue],
    design: Design,
    data: Tensor | None,
    rows: Tensor | None,
) -> dict[str, Any]:
    """Everything that the script of the page needs, as JSON values.

    Args:
        result: Samples without lost ones.
        known: What is known about them.
        keep: Share that is kept when the page opens.
        alpha: Largest p-value of doubtful samples.
        issues: Issues of these samples, by their indices in the caller's result.
        design: Which of the caller's samples to label.
        data: Training data that has the nearest training sample of each sample.
        rows: Rows of the training data that `data` has, if not all.
    """
    first, notes, key = rank_by(result), [], _hash(result.samples)
    labels = _pack_design(design, first.values)
    examples = [place for issue in issues for place in issue.samples[:EXTREMES]]
    wanted = torch.cat([design.order, torch.tensor(examples, dtype=torch.long)]).unique()
    text = 0 if known.names is None else sum(len(name.encode()) + 3 for name in known.names) // len(result)
    if len(result) > (most := ROWS // (ROW + SCORE * len(names(result)) + text)):
        notes.append(f"This page covers {most:,} of {len(result):,} samples, evenly spaced by rank.")
        own = torch.searchsorted(known.places, wanted)
        some = torch.cat([_space_ranks(first, most - len(own)), own]).unique()
        result, known = result.select(some), known.select(some)
    broken = [name for name, values in result.scores.items() if not values.isfinite().all()]
    notes += [f"The score {name} is left out: some of its values are NaN or infinite." for name in broken]
    rankings = [rank_by(result, name) for name in names(result) if name not in broken]
    noun, regions, groups = "group", torch.zeros(len(result), dtype=torch.long), known.groups
    if result.regions is not None:
        found, regions = result.regions.cpu().unique(return_inverse=True)
        if groups is None and len(found) > 1:
            noun, groups = "region", result.regions.cpu().numpy()
    shares = sorted({percent / 100 for percent in range(1, 101)} | {keep})
    extras = torch.searchsorted(known.places, wanted)
    return {
        "kind": kind(result.samples.shape[1:]),
        "shape": list(result.samples.shape[1:]),
        "columns": _find_columns(result),
        "n": len(result),
        "key": key,
        "indices": known.places.tolist(),
        "names": None if known.names is None else known.names.tolist(),
        "ramp": RAMP,
        "held_out": result.verdict is None or result.verdict.held_out,
        "alpha": alpha,
        "rankings": [_pack_ranking(ranking, shares, regions) for ranking in rankings],
        "shares": shares,
        "start": shares.index(keep),
        "regions": regions.tolist(),
        "region_names": None if result.regions is None else found.tolist(),
        "noun": noun,
        "issues": [issue._asdict() for issue in issues],
        "labels": labels,
        **_pack_verdict(result),
        **_pack_groups(groups),
        **({} if known.bad is None else {"bad": known.bad.nonzero()[0].tolist()}),
        **({} if known.twins is None else {"twins": known.twins.tolist()}),
        **_pack_pictures(result, rankings, extras, BUDGET - text * len(result), data, rows, notes),
        "notes": notes,
    }


def _hash(samples: Tensor) -> str:
    """A name for these samples, under which a browser keeps their labels."""
    return hashlib.blake2b(samples.detach().cpu().float().numpy().tobytes(), digest_size=8).hexdigest()


def _pack_design(design: Design, ranking: Tensor) -> dict[str, Any]:
    """The samples to label, by index, and what their labels decide."""
    return {
        "risk": RISK,
        "confidence": CONFIDENCE,
        "order": design.order.tolist(),
        "thresholds": design.thresholds,
        "kept": [int((ranking <= threshold).sum()) for threshold in design.thresholds],
        "scored": len(ranking),
        "members": [own.tolist() for own in design.members],
        "needed": design.needed,
    }


def _space_ranks(ranking: Ranking, count: int) -> Tensor:
    """At most `count` rows, best first, at evenly spaced ranks."""
    order = ranking.values.argsort(stable=True)
    return order[torch.from_numpy(space_evenly(len(order), count))]


def _pack_ranking(ranking: Ranking, shares: list[float], regions: Tensor) -> dict[str, Any]:
    """Values in full precision, p-values as whole numbers, and the filter.

    A p-value is (1 + count) / (1 + size); the page divides as Python does. `quotas` holds how many samples of
    each region the filter keeps at each share.
    """
    scale = Scale.of(ranking.values, ranking.real)
    edges = scale.edges(ranking.values, ranking.real)
    kept = [regions[keep_best(ranking.values, share, regions)] for share in shares]
    packed: dict[str, Any] = {
        "name": ranking.name,
        "label": ranking.label,
        "values": pack(ranking.values, 64),
        "scale": {"low": scale.low, "high": scale.high, "log": scale.log},
        "edges": edges.tolist(),
        "quotas": [part.bincount(minlength=int(regions.max()) + 1).tolist() for part in kept],
    }
    if ranking.p_value is not None and ranking.size is not None:
        packed |= {"p": pack((ranking.p_value * (ranking.size + 1)).round(), 32), "size": ranking.size}
    if ranking.real is not None:
        packed["real"] = count_bins(ranking.real, edges).tolist()
    return packed


def _find_columns(result: Result) -> list[tuple[str, float, float]]:
    """The name, mean and standard deviation of every column, if the samples come from a table."""
    if len(columns := result.about.get("columns") or []) != result.samples[0].numel():
        return []
    scaling = result.about.get("scaling") or {"mean": [0.0] * len(columns), "std": [1.0] * len(columns)}
    return list(zip(columns, scaling["mean"], scaling["std"], strict=True))


def _pack_verdict(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    if verdict is None:
        return {}
    scores, reason = np.unique(verdict.reason, return_inverse=True)
    return {
        "reasons": [[score, REASONS.get(score, score)] for score in scores.tolist()],
        "reason": reason.tolist(),
        "copies": [] if verdict.copies is None else verdict.copies.nonzero().flatten().tolist(),
        "nearest": None if verdict.nearest is None else verdict.nearest.tolist(),
    }


def _pack_groups(labels: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """The group of each sample; all but the largest groups are joined."""
    if labels is None:
        return {}
    found, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    largest = np.sort(np.argsort(-sizes, kind="stable")[:GROUPS])
    place = np.full(len(found), len(largest))
    place[largest] = np.arange(len(largest))
    others = ["others"] if len(found) > len(largest) else []
    return {"group": place[group].tolist(), "groups": [*map(str, found[largest]), *others]}


def _pack_pictures(
    result: Result,
    rankings: list[Ranking],
    extras: Tensor,
    budget: int,
    data: Tensor | None,
    rows: Tensor | None,
    notes: list[str],
) -> dict[str, Any]:
    """Pictures of evenly spaced ranks, of the extremes of every ranking, and of the rows `extras`."""
    few = min(EXTREMES, max(1, len(result) // 2))
    orders = [ranking.values.argsort(stable=True) for ranking in rankings]
    ends = torch.cat([extras, *(end for order in orders for end in (order[:few], order[-few:]))]).unique()
    left = budget - len(result) * (ROW + SCORE * len(rankings))
    drawn = panels(result.samples)
    for pixels in PIXELS:
        tables, limits, steps = _tabulate(result, drawn, pixels)
        size = sum(values[0].numel() * bits // 8 for values, bits, _ in tables.values())
        samples, bits, _ = tables["samples"]
        size += 0 if data is None else samples[0].numel() * bits // 8
        room = (left - len(ends) * size) // size
        if room >= ENOUGH or drawn.ndim < 4:
            break
    if samples.shape != drawn.shape and drawn.ndim == 4:
        notes.append(f"Images are shown at {samples.shape[2]} × {samples.shape[1]} pixels.")
    elif samples.shape != drawn.shape:
        notes.append(f"The page shows the first {CHANNELS} of {drawn.shape[1]} channels.")
    even = _space_ranks(rankings[0], min(PICTURES, max(1, room)))
    shown = torch.cat([even, ends[~torch.isin(ends, even)]])
    packed: dict[str, Any] = {"rows": shown.tolist(), "even": len(even), "steps": (steps + 1).tolist()}
    packed |= {name: pack(values[shown], bits, log) for name, (values, bits, log) in tables.items()}
    if data is not None:
        which, packed["real_of"] = _find_nearest(result, shown, torch.as_tensor(data), rows)
        packed["real"] = pack(_shrink(panels(require_samples("data", which)), pixels).clamp(*limits), bits)
    return packed


def _tabulate(
    result: Result, drawn: Tensor, pixels: int
) -> tuple[dict[str, tuple[Tensor, int, bool]], tuple[float, float], np.ndarray[Any, Any]]:
    """The drawing of each sample: values, bits, whether they are logarithmic, limits and steps."""
    bits, limits = (
        (32 if drawn.ndim == 2 else 16),
        (-np.inf, np.inf),
    )  # an outlier must not round other points
    if drawn.ndim == 4:  # images
        bits = 8
        some = drawn[: 10_000_000 // drawn[0].numel() + 1].numpy()
        low, high = np.quantile(some, BRIGHTNESS).tolist()
        limits = low, high
    tables = {"samples": (_shrink(drawn, pixels).clamp(*limits), bits, False)}
    if (spread := deviations(result)) is not None:
        tables["deviations"] = _shrink(spread, pixels), bits, True
        if spread.ndim == 2 and result.covariance is not None:  # points
            tables["covariance"] = result.covariance[:, 0, 1].cpu(), 32, False
    steps = np.arange(0)
    if result.profile is not None and result.profile.shape[1]:
        steps = space_evenly(result.profile.shape[1], STEPS)
        tables["profile"] = require_samples("result.profile", result.profile).cpu()[:, steps], 16, True
    return tables, limits, steps


def _shrink(drawn: Tensor, pixels: int) -> Tensor:
    """Curves of at most `CHANNELS` channels, images of at most `pixels` per side."""
    if drawn.ndim == 3:
        return drawn[:, :CHANNELS]
    if drawn.ndim == 2 or max(drawn.shape[1:3]) <= pixels:
        return drawn
    factor = pixels / max(drawn.shape[1:3])
    size = [max(1, round(side * factor)) for side in drawn.shape[1:3]]
    return F.interpolate(drawn.permute(0, 3, 1, 2), size=size, mode="area").permute(0, 2, 3, 1)


def _find_nearest(
    result: Result, shown: Tensor, data: Tensor, rows: Tensor | None
) -> tuple[Tensor, list[int]]:
    """The distinct nearest training samples of some rows, and the index of each row's neighbor in them."""
    if data.shape[1:] != result.samples.shape[1:]:
        raise ValueError(
            f"data must have samples of shape {tuple(result.samples.shape[1:])}, got {tuple(data.shape[1:])}."
        )
    if result.verdict is None or result.verdict.nearest is None:
        raise ValueError(
            "data shows the nearest training sample of each sample, which only a verdict with `nearest` "
            "knows; score the samples with flare.fit(...).score, or leave data out."
        )
    nearest = result.verdict.nearest[shown].cpu()
    known = torch.arange(len(data)) if rows is None else torch.as_tensor(rows).cpu()
    unknown = nearest[~torch.isin(nearest, known)]
    if len(unknown):
        raise ValueError(
            f"the verdict names training sample {int(unknown.max())}, which data does not have: it has "
            f"{len(data)} samples; give the data that the samples were compared with."
        )
    order = known.argsort()
    which, place = order[torch.searchsorted(known[order], nearest)].unique(return_inverse=True)
    return data[which.to(data.device)], place.tolist()


def pack(values: Tensor, bits: int, log: bool = False) -> dict[str, Any]:
    """Little-endian numbers in base64: floats of 32 or 64 bits, or codes of 8 or 16 bits over their range.

    With `log` the codes are even steps of the logarithm and code 0 is zero: variances span decades, and
    each needs the same relative precision.
    """
    array = values.detach().cpu().double().numpy()
    out: dict[str, Any] = {"shape": list(array.shape), "bits": bits, "log": log}
    if bits >= 32:
        codes = array.astype(f"<f{bits // 8}")
    else:
        top = 2**bits - 1
        positive = array > 0
        scaled = np.log(np.where(positive, array, 1.0)) if log else array
        within = scaled[positive] if log else scaled
        low, high = (float(within.min()), float(within.max())) if within.size else (0.0, 0.0)
        unit = (scaled - low) / ((high - low) or 1.0)
        codes = np.where(positive, 1 + unit * (top - 1), 0) if log else unit * top
        codes = codes.clip(0, top).round().astype(f"<u{bits // 8}")
        out |= {"low": low, "high": high}
    return out | {"data": base64.b64encode(codes.tobytes()).decode()}
