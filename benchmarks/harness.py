"""Two things side by side: interleaved, repeated, reported as the median ratio with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How much longer A takes than B."""

    median: float
    low: float
    high: float
    seconds: tuple[float, float]

    def __str__(self) -> str:
        a, b = self.seconds
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}; {a:.3f} s against {b:.3f} s)"


def compare(a: Callable[[], object], b: Callable[[], object], repeats: int = 5) -> Ratio:
    """Time a and b in turns, after one warm-up of each; the ratio of each turn, then its median."""
    a(), b()
    turns = [(_time(a), _time(b)) for _ in range(repeats)]
    ratios = sorted(x / y for x, y in turns)
    medians = tuple(statistics.median(side) for side in zip(*turns, strict=True))
    return Ratio(statistics.median(ratios), ratios[0], ratios[-1], medians)  # type: ignore[arg-type]


def _time(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start
