"""Intervals over independent runs: of a mean, of a ratio of means, and of the gap that a filter closes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
_ZERO = 1e-9  # means of accuracies below this are rounding errors
Interval = tuple[float, float, float]  # estimate, lower and upper end


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean, with Student's interval; unbounded for a single run.

    >>> [round(value, 3) for value in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    center = float(np.mean(values))
    if len(values) < 2:
        return center, -math.inf, math.inf
    half = _student(len(values)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return center, center - half, center + half


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """mean(above) / mean(below) of paired runs, with Fieller's interval.

    The interval is unbounded if the mean below may be 0: nothing can then be said about the ratio.
    """
    y, x = np.asarray(above, float), np.asarray(below, float)
    ratio = float(y.mean() / x.mean()) if abs(x.mean()) > _ZERO else math.inf
    if len(x) < 2:
        return ratio, -math.inf, math.inf
    (syy, syx), (_, sxx) = np.cov(y, x) / len(x)
    t = _student(len(x))
    # all r with (ȳ − r·x̄)² ≤ t²·Var(ȳ − r·x̄): between the roots of a quadratic
    a, b, c = x.mean() ** 2 - t**2 * sxx, y.mean() * x.mean() - t**2 * syx, y.mean() ** 2 - t**2 * syy
    if a <= 0:
        return ratio, -math.inf, math.inf
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return ratio, (b - root) / a, (b + root) / a


def gap_closure(after: Sequence[float], before: Sequence[float]) -> Interval:
    """100·(1 − |ā − ½|/|b̄ − ½|) of a judge's accuracies, with its interval: the gap of the means.

    The mean of the ratios of single runs is unstable where the judge sees little before the filter.
    """
    ratio, low, high = ratio_interval([a - 0.5 for a in after], [b - 0.5 for b in before])
    least = 0.0 if low < 0 < high else min(abs(low), abs(high))
    return 100 * (1 - abs(ratio)), 100 * (1 - max(abs(low), abs(high))), 100 * (1 - least)


def probability(values: Sequence[float]) -> float:
    """The one-sided p-value of Student's test that the mean is above 0."""
    if len(values) < 2 or np.std(values) < _ZERO:
        return math.nan
    return float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)


def _student(count: int) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
