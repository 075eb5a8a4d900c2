"""What plots and the report share: the picture for a sample's shape, the ranking, and the color scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.validation import one_of, require_samples
from .result import Result
from .verdict import decide

# From plausible to doubtful. Blue to orange is safe for color blindness, lightness increases monotonically
# (readable in grayscale), and both ends are visible on white.
RAMP = ("#2f4bb0", "#6b4fb3", "#b0508f", "#dc6a4c", "#f0a224")
LOG_RATIO = 30.0  # positive values whose range exceeds this ratio get a logarithmic axis
VERDICT = "verdict"  # its name next to those of the scores
Kind = Literal["points", "series", "images"]
Floats = NDArray[np.float64]


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
    """Values (n, *shape) reshaped for drawing: points (n, 2), curves (n, C, L), images (n, H, W, 1 or
    3).

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


class Ranking(NamedTuple):
    """A score, or the verdict, of n samples.

    Attributes:
        name: Name of the score, or `VERDICT`.
        values: Numbers (n,) float64; larger means more doubtful.
        p_value: Share of real samples with at least this value, (n,) float64; None without real data.
        size: Number of real samples that the p-values compare with.
        real: Values of these real samples, (m,) float64, if known.
    """

    name: str
    values: Tensor
    p_value: Tensor | None = None
    size: int | None = None
    real: Tensor | None = None

    @property
    def label(self) -> str:
        """The label of an axis with these values."""
        return "verdict (combined z)" if self.name == VERDICT else self.name


def names(result: Result) -> list[str]:
    """Everything that can rank these samples; the default comes first."""
    return list(result.scores) if result.verdict is None else [VERDICT, *result.scores]


def rank_by(result: Result, score: str | None = None) -> Ranking:
    """The ranking by a score or the verdict; by default the verdict, or the first score without one.

    Scores of samples that are not lost must be finite.
    """
    known = names(result)
    if not known:
        raise ValueError(
            "these samples have no scores to rank them by; "
            "draw them with flare.sample(..., posterior), or set Result(scores={'name': ...})."
        )
    name = known[0] if score is None else one_of("score", score, known)
    verdict, reference = result.verdict, result.reference
    real = {} if reference is None else reference.scores
    if name == VERDICT and verdict is not None:
        together = None
        if reference is not None and real.keys() >= verdict.p_values.keys():
            together = decide(reference, {score: real[score] for score in verdict.p_values}).z
        return Ranking(name, verdict.z, verdict.p_value, verdict.reference_size, together)
    values = result.scores[name].detach().cpu().double()
    n = len(result)
    if values.shape != (n,):
        raise ValueError(f"score {name!r} must have shape ({n},), one per sample, got {tuple(values.shape)}.")
    if bad := int((~values.isfinite()).sum()):
        raise ValueError(
            f"{bad} of {n} values of score {name!r} are NaN or infinite; "
            "remove these samples with result.select(score.isfinite())."
        )
    if verdict is None or name not in verdict.p_values:
        return Ranking(name, values)
    return Ranking(name, values, verdict.p_values[name], verdict.reference_size, real.get(name))


class Scale(NamedTuple):
    """The range of a score that the colors span, and whether its axis is logarithmic."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Any, real: Any = None) -> Scale:
        """From the 1% to the 99% quantile, so outliers do not use up the color range.

        Args:
            values: Values of the samples.
            real: Values of real data on the same axis, if there are any; they must also have a logarithm.
        """
        values = np.asarray(values, dtype=float)
        low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
        lowest = min(part.min() for part in (values, real) if part is not None)
        log = bool(lowest > 0 and high / low >= LOG_RATIO)
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
