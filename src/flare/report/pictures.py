"""The pictures of samples inside the page, small enough to be embedded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from ..core.validation import require_samples
from ..results.result import Result
from .figures import Kind, deviations, kind, panels, space_evenly
from .packing import pack

PIXELS = 64  # the longest side of an embedded image
CHANNELS = 16  # the largest number of channels of a series that are drawn
COLUMNS = 64  # points of the step profile
BRIGHTNESS = (0.001, 0.999)  # quantiles that become black and white: one outlier must not darken all others


@dataclass(frozen=True, eq=False)
class Pictures:
    """Samples, standard deviations and step profile as they are embedded.

    Attributes:
        kind: the picture that fits the samples.
        samples: as `panels`, with channels, brightness and resolution limited.
        spread: their standard deviations; None without a variance.
        profile: (n, steps); None without one.
        brightness: of images, what becomes black and white.
        notes: what the reader must know about the limits.
    """

    kind: Kind
    samples: Tensor
    spread: Tensor | None
    profile: Tensor | None
    brightness: tuple[float, float] | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, result: Result) -> Pictures:
        """The pictures of all samples of a result."""
        picture = kind(result.samples.shape[1:])
        drawn, spread, brightness, notes = panels(result.samples), deviations(result), None, []
        samples = _limit(drawn, picture)
        if picture == "images":
            some = drawn[: 10_000_000 // drawn[0].numel() + 1].numpy()
            low, high = (float(q) for q in np.quantile(some, BRIGHTNESS))
            brightness = (low, high)
            samples = samples.clamp(low, high)
            if samples.shape != drawn.shape:
                notes.append(f"Images are shown at {samples.shape[2]} × {samples.shape[1]} pixels.")
        elif samples.shape != drawn.shape:
            notes.append(f"The first {CHANNELS} of {drawn.shape[1]} channels are drawn.")
        spread = None if spread is None else _limit(spread, picture)
        return cls(picture, samples, spread, _profile(result), brightness, tuple(notes))

    @property
    def bits(self) -> int:
        """Bits per embedded value."""
        return 8 if self.kind == "images" else 16

    def count_bytes(self, with_real: bool) -> int:
        """Bytes per embedded sample before base64, with or without the picture of a real sample beside it."""
        parts = [self.samples, self.spread, self.samples if with_real else None]
        values = sum(part[0].numel() for part in parts if part is not None)
        columns = 0 if self.profile is None else min(COLUMNS, self.profile.shape[1])
        return self.bits // 8 * values + 2 * columns

    def pack(self, rows: Tensor) -> dict[str, Any]:
        """Some samples, and their deviations and profiles if there are any."""
        packed: dict[str, Any] = {"samples": pack(self.samples[rows], self.bits)}
        if self.spread is not None:
            packed["deviations"] = pack(self.spread[rows], self.bits, log=True)
        if self.profile is not None:
            columns = space_evenly(self.profile.shape[1], COLUMNS)
            packed["profile"] = pack(self.profile[rows][:, columns], 16, log=True)
            packed["steps"] = (columns + 1).tolist()
        return packed

    def pack_real(self, real: Tensor) -> dict[str, Any]:
        """Real samples (m, *shape), drawn as the others are."""
        drawn = _limit(panels(require_samples("data", real)), self.kind)
        return pack(drawn if self.brightness is None else drawn.clamp(*self.brightness), self.bits)


def _limit(drawn: Tensor, picture: Kind) -> Tensor:
    """Curves of at most `CHANNELS` channels, images of at most `PIXELS` pixels per side."""
    if picture == "series":
        return drawn[:, :CHANNELS]
    if picture == "points" or max(drawn.shape[1:3]) <= PIXELS:
        return drawn
    factor = PIXELS / max(drawn.shape[1:3])
    size = [max(1, round(side * factor)) for side in drawn.shape[1:3]]
    return F.interpolate(drawn.permute(0, 3, 1, 2), size=size, mode="area").permute(0, 2, 3, 1)


def _profile(result: Result) -> Tensor | None:
    profile = result.profile
    if profile is None or profile.shape[1] == 0:
        return None
    return require_samples("result.profile", profile).detach().cpu()
