"""How time and memory grow with the size of images, training data, networks and the number of samples."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flare
from tools.document import table

from .costs import fit_unet
from .harness import command, exponent, measure, peak

DIM, WIDTH = 32, 128
FEW = 6  # images that are compared
WORKERS = 4


class Net(nn.Module):
    """An MLP of two hidden layers whose width sets the number of parameters."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(DIM + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, DIM)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, DIM), t (B,) -> (B, DIM)."""
        return self.layers(torch.cat([x, t[:, None].to(x) / 100], dim=1))


def _fit(data: Tensor, width: int = WIDTH) -> flare.Scorer:
    torch.manual_seed(0)
    return flare.fit(Net(width), data, flare.schedules.cosine(100), pairs=1000, check=False)


def judge_images(side: int) -> Callable[[], Any]:
    """The verdict of two images of 3 × side × side, by a UNet."""
    data = torch.rand(2 * FEW, 3, side, side) * 2 - 1
    _, scorer = fit_unet(data, side, few=FEW)
    return lambda: scorer.score(data[:2], batch_size=1)


def fit_data(n: int) -> Callable[[], Any]:
    """A fit on n training samples."""
    data = torch.randn(n, DIM)
    return lambda: _fit(data)


def judge_parameters(width: int) -> Callable[[], Any]:
    """The verdict of 200 samples by a wider MLP."""
    scorer = _fit(torch.randn(1000, DIM), width)
    return lambda: scorer.score(torch.randn(200, DIM), batch_size=200)


def judge_samples(n: int) -> Callable[[], Any]:
    """The verdict of n samples."""
    scorer = _fit(torch.randn(1000, DIM))
    return lambda: scorer.score(torch.randn(n, DIM), batch_size=500)


#: what, as what grows, the job, its sizes, and what stands for a size in the table
GROWTHS = (
    ("verdict", "pixels of an image", judge_images, (32, 64, 128, 256), lambda side: side**2),
    ("fit", "training samples", fit_data, (1000, 10_000, 100_000, 1_000_000), int),
    ("verdict", "parameters", judge_parameters, (128, 512, 2048), lambda w: w * w + (2 * DIM + 3) * w + DIM),
    ("verdict", "samples", judge_samples, (500, 2000, 8000), int),
)


def section(quick: bool = False) -> str:
    """Measure and write it down; sizes are measured side by side, each in its own process."""
    growths = [(*growth[:3], growth[3][: 2 if quick else None], growth[4]) for growth in GROWTHS]
    jobs = [(make, size) for _, _, make, sizes, _ in growths for size in sizes]
    with multiprocessing.get_context("fork").Pool(WORKERS, maxtasksperchild=1) as pool:
        measured = iter(pool.starmap(_measure, jobs, chunksize=1))
    rows = []
    for what, name, _, sizes, count in growths:
        found = [next(measured) for _ in sizes]
        slope = exponent([count(size) for size in sizes], [seconds for seconds, _ in found])
        for size, (seconds, memory) in zip(sizes, found, strict=True):
            rows.append([what, name, f"{count(size):,}", f"{seconds:.2f}", f"{memory:.0f}", f"{slope:.2f}"])
    head = ("what", "as this grows", "size", "CPU seconds", "peak memory, MB", "exponent of time")
    return (
        "## Growth\n\nOne job per process, one thread; memory is counted beyond the imports. The exponent is "
        "the slope of log time over log size: 1 is linear, and fixed costs pull it down. Images are judged "
        f"by the UNet of the table of costs, the rest is an MLP on {DIM} numbers.\n\n{table(head, rows)}"
    )


def _measure(make: Callable[[int], Callable[[], Any]], size: int) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a job."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # about random weights
    before, run = peak(), make(size)
    seconds = min(measure(run)[1] for _ in range(2 if size < 10_000 else 1))
    return seconds, (peak() - before) * 1024


if __name__ == "__main__":
    command("growth", __doc__, section)
