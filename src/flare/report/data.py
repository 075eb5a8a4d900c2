"""The data of the page: small integers in base64, ordered from the most to the least certain sample."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.validation import require_positive_int, require_samples
from ..results.filtering import keep_fraction
from ..results.result import Result
from .figures import RAMP, Kind, Scale, choose_score, deviations, drop_lost, kind, panels, space_evenly

BUDGET = 4_000_000  # bytes before base64, which adds a third: the page stays under 6 MB
PIXELS = 64  # the longest side of an embedded image
CHANNELS = 16  # the largest number of channels of a series that are drawn
COLUMNS = 64  # points of the step profile
EXTREMES = 12  # the number of most certain, and of least certain, samples that are shown


def payload(result: Result, keep: float, score: str | None, limit: int) -> dict[str, Any]:
    """Everything the script of the page needs, as JSON values."""
    require_positive_int("limit", limit)
    total = len(result)
    result, places = drop_lost(result)
    require_samples("result.samples", result.samples)
    name, values = choose_score(result, score)
    keep_fraction(values, keep)  # validates `keep`
    view = _View.of(result)
    notes = list(view.notes)
    if total > len(result):
        notes.append(f"{total - len(result):,} of {total:,} samples were lost to NaN or infinity.")
    order = values.argsort(stable=True)  # the kept samples always come first
    few = min(EXTREMES, max(1, len(order) // 2))
    most = max(1, BUDGET // view.sample_bytes - 2 * few)
    ranks = torch.from_numpy(space_evenly(len(order), min(limit, most)))
    shown, ends = order[ranks], torch.cat([order[:few], order[-few:].flip(0)])
    scale = Scale.of(values)
    edges, counts = scale.bins(values)
    stops = _stops(values[order], keep)
    data: dict[str, Any] = {
        "kind": view.kind,
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
        **view.pack(shown),
        "ends": {
            "indices": places[ends].tolist(),
            "scores": pack(values[ends], 32),
            **view.pack(ends),
        },
        "notes": notes,
    }
    if view.kind == "points" and result.variance is not None:
        data["ellipses"] = pack(_second_moments(result)[shown], 32)
    if view.profile is not None:
        columns = space_evenly(view.profile.shape[1], COLUMNS)
        data["profile"] = pack(view.profile[shown][:, columns], 16, log=True)
        data["steps"] = (columns + 1).tolist()
    return data


@dataclass(frozen=True, eq=False)
class _View:
    """Samples, standard deviations and step profile as they are embedded.

    Attributes:
        kind: the picture that fits the samples.
        samples: as `panels`, with channels, range and resolution limited.
        spread: their standard deviations; None without a variance.
        profile: (n, steps); None without one.
        notes: what the reader must know about the limits.
    """

    kind: Kind
    samples: Tensor
    spread: Tensor | None
    profile: Tensor | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, result: Result) -> _View:
        """Limit channels to `CHANNELS`, images to `PIXELS`, and brightness to the 0.1% to 99.9% quantiles."""
        picture = kind(result.samples.shape[1:])
        samples, spread, notes = panels(result.samples), deviations(result), []
        if picture == "series" and samples.shape[1] > CHANNELS:
            notes.append(f"The first {CHANNELS} of {samples.shape[1]} channels are drawn.")
            samples, spread = samples[:, :CHANNELS], None if spread is None else spread[:, :CHANNELS]
        if picture == "images":
            # quantiles: a single outlier pixel must not darken all the others
            low, high = np.quantile(samples[: 10_000_000 // samples[0].numel() + 1].numpy(), [0.001, 0.999])
            samples = samples.clamp(float(low), float(high))
            if max(samples.shape[1:3]) > PIXELS:
                samples, spread = _shrink(samples), None if spread is None else _shrink(spread)
                notes.append(f"Images are shown at {samples.shape[2]} × {samples.shape[1]} pixels.")
        return cls(picture, samples, spread, _profile(result), tuple(notes))

    @property
    def bits(self) -> int:
        """Bits per embedded value."""
        return 8 if self.kind == "images" else 16

    @property
    def sample_bytes(self) -> int:
        """Bytes per embedded sample, before base64."""
        values = sum(part[0].numel() for part in (self.samples, self.spread) if part is not None)
        columns = 0 if self.profile is None else min(COLUMNS, self.profile.shape[1])
        return self.bits // 8 * values + 2 * columns

    def pack(self, rows: Tensor) -> dict[str, Any]:
        """Some samples, and their deviations if there are any."""
        packed = {"samples": pack(self.samples[rows], self.bits)}
        if self.spread is not None:
            packed["deviations"] = pack(self.spread[rows], self.bits, log=True)
        return packed


def pack(values: Tensor, bits: int, log: bool = False) -> dict[str, Any]:
    """Floats (32 bits) or codes of 8 or 16 bits over the range of the values, little-endian, in base64.

    With `log` the codes are even steps of the logarithm and code 0 is zero: variances span decades, and
    each needs the same relative precision.
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
    """(fraction, count, threshold) at every whole percent and at `keep`, as `keep_fraction` counts."""
    fractions = sorted({percent / 100 for percent in range(1, 101)} | {keep})
    counts = [max(1, round(fraction * len(scores))) for fraction in fractions]
    return [(f, count, float(scores[count - 1])) for f, count in zip(fractions, counts, strict=True)]


def _shrink(images: Tensor) -> Tensor:
    """Images (n, H, W, C) with the longest side scaled down to `PIXELS`."""
    factor = PIXELS / max(images.shape[1:3])
    size = [max(1, round(side * factor)) for side in images.shape[1:3]]
    return F.interpolate(images.permute(0, 3, 1, 2), size=size, mode="area").permute(0, 2, 3, 1)


def _profile(result: Result) -> Tensor | None:
    profile = result.profile
    if profile is None or profile.shape[1] == 0:
        return None
    return require_samples("result.profile", profile).detach().cpu()


def _second_moments(result: Result) -> Tensor:
    """Both variances and the covariance, (n, 3); the covariance is 0 if it was not computed."""
    assert result.variance is not None
    variance = result.variance.detach().cpu().double()
    cross = torch.zeros(len(variance)) if result.covariance is None else result.covariance[:, 0, 1].cpu()
    return torch.cat([variance, cross.double()[:, None]], dim=1)
