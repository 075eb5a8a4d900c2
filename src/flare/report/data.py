"""What the page draws from: small integers in base64, ordered from the most certain sample to the least."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.validation import require_positive_int, require_samples
from ..results.filtering import keep_fraction
from ..results.result import Result
from .figures import RAMP, Scale, choose_score, deviations, drop_lost, kind, panels, space_evenly

BUDGET = 4_000_000  # bytes before base64, which makes them a third more: the page stays under 6 MB
PIXELS = 64  # the longest side of an embedded image
CHANNELS = 16  # curves of so many channels are drawn
COLUMNS = 64  # points of the step profile
EXTREMES = 12  # the most and the least certain samples that are shown


def payload(result: Result, keep: float, score: str | None, limit: int) -> dict[str, Any]:
    """Everything the script needs, as JSON values."""
    require_positive_int("limit", limit)
    asked = len(result)
    result, places = drop_lost(result)
    require_samples("result.samples", result.samples)
    name, values = choose_score(result, score)
    keep_fraction(values, keep)  # says what is wrong with `keep`
    picture = kind(result.samples.shape[1:])
    scale = Scale.of(values)
    order = values.argsort(stable=True)  # the kept samples are always the first ones
    drawn, spread, notes = _drawn(result, picture)
    if asked > len(result):
        notes.append(f"{asked - len(result):,} of {asked:,} samples were lost to NaN or infinity.")
    profile = _profile(result)
    width = 1 if picture == "images" else 2
    each = width * sum(part[0].numel() for part in (drawn, spread) if part is not None)
    each += 0 if profile is None else 2 * min(COLUMNS, profile.shape[1])
    few = min(EXTREMES, max(1, len(order) // 2))
    ranks = torch.from_numpy(space_evenly(len(order), min(limit, max(1, BUDGET // each - 2 * few))))
    shown = order[ranks]
    ends = torch.cat([order[:few], order[-few:].flip(0)])
    edges, counts = scale.bins(values)
    stops = _stops(values[order], keep)
    data: dict[str, Any] = {
        "kind": picture,
        "shape": list(result.samples.shape[1:]),
        "n": len(result),
        "shown": len(ranks),
        "score": name,
        "ramp": RAMP,
        "scale": {"low": scale.low, "high": scale.high, "log": scale.log},
        "stops": stops,
        "start": [stop[0] for stop in stops].index(keep),
        "bins": {"edges": edges.tolist(), "counts": counts.tolist()},
        "ranks": ranks.tolist(),
        "scores": pack(values[shown], 32),
        "samples": pack(drawn[shown], 8 * width),
        "ends": {
            "indices": places[ends].tolist(),
            "scores": pack(values[ends], 32),
            "samples": pack(drawn[ends], 8 * width),
        },
        "notes": notes,
    }
    if spread is not None:
        data["deviations"] = pack(spread[shown], 8 * width, log=True)
        data["ends"]["deviations"] = pack(spread[ends], 8 * width, log=True)
        if picture == "points":
            data["ellipses"] = pack(_second_moments(result)[shown], 32)
    if profile is not None:
        columns = space_evenly(profile.shape[1], COLUMNS)
        data["profile"] = pack(profile[shown][:, columns], 16, log=True)
        data["steps"] = (columns + 1).tolist()
    return data


def pack(values: Tensor, bits: int, log: bool = False) -> dict[str, Any]:
    """Floats (32 bits) or codes of 8 or 16 bits over the range of the values, little-endian, in base64.

    With `log` the codes are even steps of the logarithm, and code 0 is zero itself: variances span
    decades, and each must be right in proportion.
    """
    array = values.detach().cpu().double().numpy()
    out: dict[str, Any] = {"shape": list(array.shape), "bits": bits, "log": log}
    if bits == 32:
        codes = array.astype("<f4")
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


def _stops(scores: Tensor, keep: float) -> list[tuple[float, int, float]]:
    """(fraction, count, threshold) at every whole percent and at `keep`; the counts of `keep_fraction`."""
    fractions = sorted({percent / 100 for percent in range(1, 101)} | {keep})
    counts = [max(1, round(fraction * len(scores))) for fraction in fractions]
    return [(f, count, float(scores[count - 1])) for f, count in zip(fractions, counts, strict=True)]


def _drawn(result: Result, picture: str) -> tuple[Tensor, Tensor | None, list[str]]:
    """Samples and deviations as they are embedded, and what the reader must be told of it."""
    drawn, spread, notes = panels(result.samples), deviations(result), []
    if picture == "series" and drawn.shape[1] > CHANNELS:
        notes.append(f"The first {CHANNELS} of {drawn.shape[1]} channels are drawn.")
        drawn, spread = drawn[:, :CHANNELS], None if spread is None else spread[:, :CHANNELS]
    if picture == "images":
        # one burnt-out pixel must not dim all the others
        low, high = np.quantile(drawn[: 10_000_000 // drawn[0].numel() + 1].numpy(), [0.001, 0.999])
        drawn = drawn.clamp(float(low), float(high))
        if max(drawn.shape[1:3]) > PIXELS:
            drawn, spread = _smaller(drawn), None if spread is None else _smaller(spread)
            notes.append(f"Images are shown at {drawn.shape[2]} × {drawn.shape[1]} pixels.")
    return drawn, spread, notes


def _smaller(images: Tensor) -> Tensor:
    factor = PIXELS / max(images.shape[1:3])
    size = [max(1, round(side * factor)) for side in images.shape[1:3]]
    return F.interpolate(images.permute(0, 3, 1, 2), size=size, mode="area").permute(0, 2, 3, 1)


def _profile(result: Result) -> Tensor | None:
    profile = result.profile
    if profile is None or profile.shape[1] == 0:
        return None
    return require_samples("result.profile", profile).detach().cpu()


def _second_moments(result: Result) -> Tensor:
    """(n, 3): both variances and the covariance, which is 0 where nobody asked for it."""
    assert result.variance is not None
    variance = result.variance.detach().cpu().double()
    cross = torch.zeros(len(variance)) if result.covariance is None else result.covariance[:, 0, 1].cpu()
    return torch.cat([variance, cross.double()[:, None]], dim=1)
