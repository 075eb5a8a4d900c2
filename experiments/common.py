"""What the studies share: options, spreads over seeds, and the last line of a page."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from scipy import stats
from sklearn.cluster import KMeans
from torch import Tensor

import flare
from tools.document import DOCS, ROOT, write_page

STUDIES = DOCS / "evidence"


def parse_options(description: str | None, **defaults: int) -> argparse.Namespace:
    """Parse --threads and one integer option for each default, such as seeds=5 for --seeds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def job_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of the commands that run jobs: --quick and --workers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, help="processes, one thread each; default: one per core")
    return parser


def output_directory(quick: bool) -> Path:
    """Where pages are written: docs, or runs/quick."""
    return ROOT / "runs" / "quick" if quick else DOCS


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds; a single seed has no deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two scores, (n,) each."""
    return float(stats.spearmanr(a.double().numpy(), b.double().numpy()).statistic)


def keep(score: Tensor, share: float, typical: float | None = None, regions: Tensor | None = None) -> Tensor:
    """Mask of the samples with the lowest scores, (n,) bool: the share of every region that is kept.

    Args:
        score: One score per sample, (n,).
        share: Share of the samples to keep.
        typical: Threshold up to which all scores count as ties, which are broken by index.
        regions: Region of each sample, (n,); by default all samples are one region.
    """
    ranking = score if typical is None else score.clamp(min=typical)
    return flare.Result(score[:, None], scores={"score": ranking}, regions=regions).keep(share)


def find_regions(x: Tensor, count: int, like: Tensor) -> Tensor:
    """The region of each sample, (n,): the nearest of `count` centers of real data, by k-means."""
    kmeans = KMeans(count, n_init=4, random_state=0).fit(like.flatten(1).double().numpy())
    return torch.from_numpy(kmeans.predict(x.flatten(1).double().numpy())).long()


def typeset(text: str) -> str:
    """A text with its negative numbers as printed: −1 for -1, −∞ for -inf, 0.00 for -0.00.

    >>> typeset("-3 [-inf, -0.0] of sines-16, 1e-6")
    '−3 [−∞, 0.0] of sines-16, 1e-6'
    """
    text = re.sub(r"(?<![\w.-])-(0(?:\.0+)?)(?!\d|\.\d|e)", r"\1", text)
    text = re.sub(r"(?<![\w-])(-?)inf(?!\w)", lambda found: "−∞" if found[1] else "∞", text)
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", text)


def versions(measured: str = "") -> str:
    """The versions of torch and FLARE, and of the oldest results, for the last line of a page."""
    said = f"torch {torch.__version__.split('+')[0]}, FLARE {flare.__version__}."
    return f"{said} Results come from FLARE {measured} or later." if measured else said


def cores() -> str:
    """The cores of this machine, for the last line of a page."""
    return f"{os.cpu_count()} cores ({platform.machine()})"


def write_study(name: str, title: str, command: str, parts: Iterable[str], started: float) -> None:
    """Write docs/evidence/NAME.md and print it."""
    machine = (
        f"Written by `{command}` in {time.time() - started:.0f} s with {torch.get_num_threads()} thread(s) "
        f"of {cores()}; {versions()}"
    )
    text = "\n\n".join([f"# {title}", *parts, machine]) + "\n"
    write_page(STUDIES / f"{name}.md", text)
    print(text)
