"""How time and memory grow as a job doubles, and what that makes of two large models."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import flare
from flare.posteriors.curvature import ggn
from tools.document import table

from .harness import command, measure, peak

FACTORS = (1, 2, 4)
REPEATS = 2


@dataclass(frozen=True)
class Job:
    """A job: p by the width of an MLP, m, d, n, steps, directions and levels."""

    width: int = 128
    count: int = 500
    dim: int = 32
    n: int = 1000
    steps: int = 8
    directions: int = 4
    levels: int = 4


class Net(nn.Module):
    """An MLP of two hidden layers whose width sets p."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, dim), t (B,) -> (B, dim)."""
        return self.layers(torch.cat([x, t[:, None].to(x) / 100], dim=1))


def prepare(job: Job) -> tuple[flare.Denoiser, flare.subsets.Subset, flare.noising.Pairs]:
    """Network, subset and pairs of a job."""
    torch.manual_seed(0)
    denoiser = flare.Denoiser(Net(job.dim, job.width))
    subset = flare.subsets.random(denoiser, count=job.count, seed=0)
    data = torch.randn(500, job.dim)
    return denoiser, subset, flare.noising.pairs(data, flare.schedules.cosine(100), n=job.n, batch_size=250)


def fitting(job: Job) -> Callable[[], Any]:
    """H with one probe per pair."""
    denoiser, subset, pairs = prepare(job)
    return lambda: ggn(denoiser, subset, pairs, probes=1)


def sampling(job: Job) -> Callable[[], Any]:
    """Scored samples, by secants, with a posterior that is cheap to fit."""
    denoiser, subset, pairs = prepare(replace(job, n=50))
    posterior = flare.posteriors.diagonal(denoiser, subset, pairs, 1.0, 1.0, probes=1)
    steps = flare.samplers.ddim(pairs.schedule, job.steps, clip=3.0)
    options = {"directions": job.directions, "batch_size": 250, "score": "trace"}
    return lambda: flare.sample(denoiser, steps, posterior, n=job.n, shape=(job.dim,), **options)


def scoring(job: Job) -> Callable[[], Any]:
    """The influence of finished samples, at several levels with one pair of noises each."""
    denoiser, subset, pairs = prepare(replace(job, n=50))
    posterior = flare.posteriors.diagonal(denoiser, subset, pairs, 1.0, 1.0, probes=1)
    x = torch.randn(job.n, job.dim)
    levels = [(k + 1) / (job.levels + 1) for k in range(job.levels)]
    options = {"score": "influence", "levels": levels, "batch_size": 250, "data": pairs.data[:50]}
    return lambda: flare.score(denoiser, posterior, pairs.schedule, x, **options)


GROWTHS = (
    ("fit", "pairs n", "n", fitting, Job(n=4000)),
    ("fit", "width (p grows with its square)", "width", fitting, Job(width=256, n=1000)),
    ("fit", "subset m", "count", fitting, Job(count=1000, width=256, n=2000)),
    ("fit", "dimension d", "dim", fitting, Job(dim=64, n=4000)),
    ("sampling", "samples n", "n", sampling, Job(n=1000, width=256)),
    ("sampling", "width (p grows with its square)", "width", sampling, Job(width=256, n=500)),
    ("sampling", "subset m", "count", sampling, Job(count=500, width=256, n=500)),
    ("sampling", "dimension d", "dim", sampling, Job(dim=64, n=500, width=256)),
    ("sampling", "steps", "steps", sampling, Job(n=500, width=256)),
    ("sampling", "directions", "directions", sampling, Job(n=500, width=256)),
    ("influence", "samples n", "n", scoring, Job(n=1000, width=256)),
    ("influence", "levels", "levels", scoring, Job(n=500, width=256)),
)


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    factors = FACTORS[:2] if quick else FACTORS
    rows, laws = [], {}
    for what, name, field, make, job in GROWTHS:
        sizes = [getattr(job, field) * factor for factor in factors]
        found = [_apart(make, replace(job, **{field: size})) for size in sizes]
        seconds, memory = zip(*found, strict=True)
        laws[what, field] = exponent(sizes, seconds), sizes[0]
        rows.append(
            [what, name, f"{sizes[0]:,}–{sizes[-1]:,}", f"{seconds[0]:.2f}–{seconds[-1]:.2f}",
             f"{laws[what, field][0]:.2f}", f"{memory[0]:.0f}–{memory[-1]:.0f}"]
        )  # fmt: skip
    head = ("what", "as this doubles", "from–to", "CPU seconds", "exponent of time", "peak memory, MB")
    return (
        "## Growth\n\nAn MLP of two hidden layers, one thread; every size ran in a process of its own, "
        "twice, of which the fastest counts. The exponent is the slope of log time over log size: 1 is "
        "linear. Fixed costs pull it down. A width that doubles makes four times the parameters, so 2 "
        "there is linear in p. The memory is what lies beyond the "
        f"imports.\n\n{table(head, rows)}\n\n{estimate(laws)}"
    )


def exponent(sizes: list[int], seconds: tuple[float, ...]) -> float:
    """The least-squares slope of log time over log size."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = torch.tensor(seconds, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def _apart(make: Callable[[Job], Callable[[], Any]], job: Job) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a job, run in its own process."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_measure, args=(make, job, queue))
    process.start()
    found = queue.get()
    process.join()
    return found


def _measure(make: Callable[[Job], Callable[[], Any]], job: Job, queue: Any) -> None:
    before, run = peak(), make(job)
    seconds = min(measure(run)[1] for _ in range(REPEATS))
    queue.put((seconds, (peak() - before) * 1024))


@dataclass(frozen=True)
class Large:
    """A large model, as it is published."""

    name: str
    parameters: float
    call: float  # FLOPs of a network call for one sample
    numbers: int  # in a sample


LARGE = (
    Large("DiT-XL/2, 256 × 256", 675e6, 0.24e12, 4 * 32 * 32),
    Large("SDXL's UNet, 1024 × 1024", 2.6e9, 6e12, 4 * 128 * 128),
)
GPUS = 8
RATE = 20e12  # FLOP/s per GPU, sustained, float32 without TF32: a third of an H100's peak
SAMPLES, STEPS, DIRECTIONS, SUBSET, ROWS = 1000, 50, 16, 10_000, 8
OVERHEAD = 3.0  # calls per direction, as measured on a UNet in the section on scoring
BACKWARD = 3  # a row of J costs a forward and a backward pass


def estimate(laws: dict[tuple[str, str], tuple[float, int]]) -> str:
    """What fit and scored samples would take of two large models, by the exponents that were measured."""

    def grown(what: str, field: str, size: float) -> float:
        # below 1 is a fixed cost of the small jobs that were measured: large ones do not have it
        slope, base = laws[what, field]
        return size * (size / base) ** max(0.0, slope - 1)

    rows = []
    for model in LARGE:
        pairs = SUBSET * ROWS
        fit_calls = grown("fit", "n", pairs) * BACKWARD
        sizes = {"n": SAMPLES, "steps": STEPS, "directions": DIRECTIONS}
        calls = OVERHEAD * prod(grown("sampling", field, size) for field, size in sizes.items())
        flops = (fit_calls * model.call + pairs * SUBSET**2, calls * model.call)
        hours = [flop / RATE / GPUS / 3600 for flop in flops]
        weights = 4 * model.parameters / 1e9
        H = 8 * SUBSET**2 / 1e9
        spread = 3 * 4 * DIRECTIONS * model.numbers / 1e9
        rows.append(
            [model.name, f"{weights:.1f}", f"{weights + 2 * H:.1f}",
             f"{2 * weights:.1f} + {spread * 1e3:.1f} MB per sample", f"{fit_calls:,.0f}", f"{hours[0]:.1f}",
             f"{calls:,.0f}", f"{hours[1]:.1f}"]
        )  # fmt: skip
    head = (
        "model", "weights, GB", "fit, GB", "sampling, GB", "fit, calls", "fit, hours", "sampling, calls",
        "sampling, hours",
    )  # fmt: skip
    return (
        f"### Two large models, estimated\n\nNothing here was run. A dense posterior over m = {SUBSET:,} "
        f"random parameters from {ROWS} rows per parameter ({SUBSET * ROWS:,} pairs, one probe each), and "
        f"{SAMPLES:,} samples with {STEPS} steps and {DIRECTIONS} directions by secants, on {GPUS} GPUs "
        f"that sustain {RATE / 1e12:.0f} TFLOP/s each in float32 (a third of an H100's peak without "
        "TF32, whose 10 bits are too few for a difference). A call for one sample is 0.24 TFLOP for the "
        "DiT (118.6 G multiply-adds) and about 6 TFLOP for the UNet. A pair costs a forward and a "
        f"backward pass ({BACKWARD} calls), and m² for H; a sample costs {OVERHEAD} calls per direction "
        "and step. Calls grow with the exponents measured above, or linearly where those are below 1, "
        "and are shared by the GPUs, which talk once: the sum of H. The fit holds the weights "
        "and H twice; sampling holds the weights, a copy that "
        "moves, and δx with its change for all directions. What the network itself needs for a batch "
        f"comes on top.\n\n{table(head, rows)}"
    )


if __name__ == "__main__":
    command("growth", __doc__, section)
