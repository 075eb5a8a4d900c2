"""Two things side by side: interleaved, repeated, reported as the median ratio with its spread.

Times are CPU times of all threads and finished child processes, so other programs do not count.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tools.document import DOCS, machine, replace_section

T = TypeVar("T")
PAGE = DOCS / "evidence" / "performance.md"


def command(name: str, about: str | None, section: Callable[[bool], str], threads: int = 1) -> None:
    """The command line of a benchmark: print its section and, with --write, put it into the page."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a smaller run, to see that it works")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = f"{section(options.quick).strip()}\n\nMeasured on {machine()}.\n"
    print(text)
    if options.write:
        replace_section(PAGE, name, text)


@dataclass(frozen=True)
class Ratio:
    """How much longer a takes than b."""

    median: float
    low: float
    high: float
    seconds: tuple[float, float]

    @property
    def short(self) -> str:
        """The ratio with its spread."""
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"

    def __str__(self) -> str:
        a, b = self.seconds
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}; {a:.3f} s against {b:.3f} s)"


def compare(a: Callable[[], object], b: Callable[[], object], repeats: int = 5) -> Ratio:
    """Time a and b in turns, after one warm-up of each; the ratio of each turn, then its median."""
    a(), b()
    turns = [(measure(a)[1], measure(b)[1]) for _ in range(repeats)]
    ratios = sorted(x / y for x, y in turns)
    medians = tuple(statistics.median(side) for side in zip(*turns, strict=True))
    return Ratio(statistics.median(ratios), ratios[0], ratios[-1], medians)  # type: ignore[arg-type]


def judge(what: str, value: float, target: float, least: bool = False) -> str:
    """A line of a list: a figure, its target, and whether it is met."""
    met = value >= target if least else value <= target
    return f"- {what}: {value:.2f}, target {target:g}: {'met' if met else '**missed**'}"


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The least-squares slope of log time over log size."""
    return float(stats.linregress(np.log(sizes), np.log(seconds)).slope)


def peak() -> float:
    """The largest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def measure(f: Callable[[], T]) -> tuple[T, float]:
    """The value of f() and its CPU seconds."""
    start = cpu()
    value = f()
    return value, cpu() - start


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two scores, (n,) each."""
    return float(stats.spearmanr(a.double().numpy(), b.double().numpy()).statistic)


def cpu() -> float:
    """CPU seconds so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
