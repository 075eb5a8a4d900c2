"""What the report and the notebook figures share: the picture for a sample's shape, the colors of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.validation import require_samples
from ..results.result import Result

# From certain to uncertain. Blue to orange is safe for color blindness, lightness increases monotonically
# (readable in grayscale), and both ends are visible on white.
RAMP = ("#2f4bb0", "#6b4fb3", "#b0508f", "#dc6a4c", "#f0a224")
LOG_RATIO = 30.0  # positive values whose range exceeds this ratio get a logarithmic axis
BAND = (0.1, 0.5, 0.9)  # quantiles of a band over samples
Kind = Literal["points", "series", "images"]
Floats = NDArray[np.float64]


def as_result(source: Any) -> Result:
    """A result as it is drawn, also of the output of `flare.FlarePipeline`, with images in [0, 1].

    Of a latent diffusion model, the decoded images are drawn if the result has them.
    """
    if isinstance(source, Result):
        return _show_decoded(source)
    if not hasattr(source, "uncertainty_maps"):
        raise TypeError(
            "result must be a flare.Result or the output of flare.FlarePipeline, got "
            f"{type(source).__name__}; make one with flare.Result(samples, scores={{'name': ...}})."
        )
    images, score = source.images, source.scores
    if isinstance(images, list):  # PIL images
        images = np.stack([np.atleast_3d(image) for image in images]) / 255
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(images).permute(0, 3, 1, 2)
    images = images.to(score).masked_fill(score.isnan().view(-1, 1, 1, 1), torch.nan)  # lost images are black
    return Result(images, variance=source.uncertainty_maps, scores={"score": score})


def _show_decoded(result: Result) -> Result:
    """The result with images in place of latents, if `observed` has them."""
    images = result.observed
    latents = result.samples.ndim == 4 and result.samples.shape[1] not in (1, 3)
    if images is None or images.ndim != 4 or images.shape[1] not in (1, 3) or not latents:
        return result
    return replace(result, samples=images, variance=result.observed_variance, covariance=None)


def kind(shape: Sequence[int]) -> Kind:
    """The kind of picture for samples of this shape.

    (2,) is a point, (L,) a curve, (C, L) one curve per channel, (C, H, W) an image. (H, W) is an image if
    both sides have at least 8 pixels and neither is more than twice the other.

    >>> kind((2,)), kind((80,)), kind((3, 80)), kind((28, 28)), kind((3, 32, 32))
    ('points', 'series', 'series', 'images', 'images')
    """
    if len(shape) == 1:
        return "points" if shape[0] == 2 else "series"
    if len(shape) == 2:
        return "images" if min(shape) >= 8 and max(shape) <= 2 * min(shape) else "series"
    if len(shape) == 3:
        return "images"
    raise ValueError(
        f"samples of shape {tuple(shape)} cannot be drawn; reshape them to (L,), (C, L), (H, W) or (C, H, W)."
    )


def panels(values: Tensor) -> Tensor:
    """Values (n, *shape) as they are drawn: points (n, 2), curves (n, C, L), images (n, H, W, 1 or 3).

    Three channels make a color image; any other number is shown side by side, in gray.
    """
    values = values.detach().cpu().float()
    match kind(values.shape[1:]):
        case "points":
            return values
        case "series":
            return values[:, None] if values.ndim == 2 else values
    if values.ndim == 3:
        return values[..., None]
    if values.shape[1] == 3:
        return values.permute(0, 2, 3, 1)
    return torch.cat(values.unbind(1), dim=-1)[..., None]


def drop_lost(result: Result) -> tuple[Result, Tensor]:
    """The result without samples that are lost or have no verdict, and the rows of the remaining samples."""
    found = ~result.lost.cpu()
    if result.verdict is not None:
        found &= ~result.verdict.lost.cpu()
    rows = found.nonzero().flatten()
    if len(rows) == 0:
        raise ValueError(f"all {len(result)} samples were lost to NaN or infinity; nothing can be shown.")
    return (result if len(rows) == len(result) else result.select(found)), rows


def deviations(result: Result) -> Tensor | None:
    """The standard deviation of each coordinate, as `panels` (summed over colors), if there is one."""
    if result.variance is None:
        return None
    if result.variance.shape != result.samples.shape:
        raise ValueError(
            f"the variance must have the shape of the samples, {tuple(result.samples.shape)}, "
            f"got {tuple(result.variance.shape)}."
        )
    require_samples("the variance", result.variance)
    variance = panels(result.variance).clamp(min=0)
    if variance.ndim == 4 and variance.shape[-1] == 3:
        variance = variance.sum(-1, keepdim=True)
    return variance.sqrt()


@dataclass(frozen=True)
class Scale:
    """The range of a score that the colors span, and whether its axis is logarithmic."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Any, real: Any = None) -> Scale:
        """From the 1% to the 99% quantile, so that outliers do not use up the color range.

        Args:
            values: Values of the samples.
            real: Values of real data on the same axis, if there is any. They must be positive for a
                logarithmic axis, too.
        """
        values = np.asarray(values, dtype=float)
        low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
        smallest = min(float(part.min()) for part in (values, real) if part is not None)
        log = bool(smallest > 0 and high / low >= LOG_RATIO)
        if not high > low:
            low, high = low - 0.5, high + 0.5
        return cls(low, high, log)

    def edges(self, values: Any, real: Any = None, count: int = 48) -> Floats:
        """The edges (count + 1,) of the bins of a histogram on this axis.

        They span all values, of the samples and of real data, unless outliers would take up more than a third
        of the axis; then they span the 0.5% to 99.5% quantiles of both. `count_bins` counts all values.
        """
        f, back = (np.log, np.exp) if self.log else (np.positive, np.positive)
        parts = [f(np.asarray(part, dtype=float)) for part in (values, real) if part is not None]
        low, high = min(part.min() for part in parts), max(part.max() for part in parts)
        ends = np.array([np.quantile(part, [0.005, 0.995]) for part in parts])
        inner, outer = float(ends[:, 0].min()), float(ends[:, 1].max())
        if outer > inner and high - low > 1.5 * (outer - inner):
            low, high = inner, outer
        if not high > low:
            low, high = self.low, self.high  # all values are equal, and the axis is linear
        return np.asarray(back(np.linspace(low, high, count + 1)))


def count_bins(values: Any, edges: Floats) -> NDArray[np.int64]:
    """How many values each bin holds; values beyond the edges count in the first and the last bin."""
    return np.histogram(np.asarray(values, dtype=float).clip(edges[0], edges[-1]), edges)[0]


def space_evenly(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` of the indices 0 … count - 1, evenly spaced, including both ends."""
    return np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64)


def interleave(count: int) -> NDArray[np.int64]:
    """The indices 0 … count - 1 in golden-ratio steps, so that no end of the ranking is drawn last."""
    step = max(1, round(count * 0.618))
    while gcd(step, count) > 1:
        step += 1
    return np.arange(count) * step % count
