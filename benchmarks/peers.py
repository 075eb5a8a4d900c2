"""Our GGN against laplace-torch's on the same pairs; runs in the environment of `make crosscheck`.

Every fit runs in its own process: its CPU seconds, and its peak memory beyond the imports.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import flare
from flare.posteriors.curvature import ggn, probe_count
from tools.document import ROOT, table

from .harness import command, measure, peak

COUNT = 4412  # m, the paper's subset of chirp
THEIR_BATCH = 20  # pairs: the Jacobian of a batch, over all p, then takes 0.46 GB
THEIRS = "laplace-torch"
PAIRS = 2000  # of theirs; with probes ten times as many
FITS = (THEIRS, "ours, all rows", 'ours, probes="auto"', "ours, one probe")


class Joined(nn.Module):
    """A network as laplace-torch calls it: the time is the last column of its input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, joined: Tensor) -> Tensor:
        """joined (B, d + 1) -> (B, d)."""
        return self.net(joined[:, :-1], joined[:, -1].long())


def problem(n: int) -> tuple[flare.bench.Benchmark, flare.noising.Pairs]:
    """The shipped chirp model and n of its training pairs, each with weight one."""
    model = flare.bench.load("chirp")
    return model, flare.noising.pairs(model.data, model.schedule, n=n, seed=0)


def theirs(n: int, part: str) -> Tensor:
    """laplace-torch's H over the subset: a sum over the pairs, in float32."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    model, pairs = problem(n)
    batches = list(pairs.batches(model.denoiser.prediction))
    joined = torch.cat([torch.cat([b.x, b.t[:, None].to(b.x)], dim=1) for b in batches])
    loader = DataLoader(TensorDataset(joined, torch.cat([b.target for b in batches])), THEIR_BATCH)
    net = Joined(model.denoiser.module).requires_grad_()
    options: dict[str, object] = {"subset_of_weights": part}
    if part == "subnetwork":
        subset, flat, offset = _subset(model, part), [], 0
        for name, value in model.denoiser.params.items():
            if name in subset.indices:
                flat.append(subset.indices[name] + offset)
            offset += value.numel()
        options["subnetwork_indices"] = torch.cat(flat)
    la = Laplace(net, "regression", hessian_structure="full", sigma_noise=1.0, **options)
    la.fit(loader)
    return la.H / n


def ours(n: int, part: str, which: str) -> Tensor:
    """Our H over the same subset; "auto" is as many probes per pair as it takes for 20,000 pairs."""
    model, pairs = problem(n)
    subset = _subset(model, part)
    auto = probe_count("auto", 20_000, subset.size, 80)
    probes = {"ours, all rows": None, "ours, one probe": 1}.get(which, auto)
    return ggn(model.denoiser, subset, pairs, probes=probes)[0]


def _subset(model: flare.bench.Benchmark, part: str) -> flare.subsets.Subset:
    if part == "last_layer":
        return flare.subsets.last_layer(model.denoiser)
    return flare.subsets.random(model.denoiser, count=COUNT, seed=0)


def _run(which: str, part: str, n: int) -> None:
    """One fit, in this process: print what it took."""
    torch.set_num_threads(1)
    if which == THEIRS:
        import laplace  # noqa: F401
    torch.randn(64, 64) @ torch.randn(64, 64)
    before = peak()
    H, seconds = measure(lambda: theirs(n, part) if which == THEIRS else ours(n, part, which))
    memory = peak() - before
    assert H.isfinite().all()
    print(json.dumps({"seconds": seconds, "memory": memory}))


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    repeats, sizes = (1, (20, 40)) if quick else (2, (60, 160))
    rows, verdicts = [], []
    plan = (("subnetwork", FITS, sizes), ("last_layer", FITS[:2], (THEIR_BATCH, 2 * THEIR_BATCH)))
    for part, fits, own in plan:
        took = [{which: _whole(which, part, own) for which in fits} for _ in range(repeats)]
        for which in fits:
            faster = [run[THEIRS].seconds / run[which].seconds for run in took]
            memory, theirs = (statistics.median(run[w].memory for run in took) for w in (which, THEIRS))
            seconds = statistics.median(run[which].seconds for run in took)
            pairs = f"{PAIRS * (10 if 'probe' in which else 1):,}"
            spread = f"{statistics.median(faster):.1f} ({min(faster):.1f}–{max(faster):.1f})"
            rows.append([part, which, pairs, f"{seconds:.0f} s", spread, f"{memory:.2f} GB"])
            if which == "ours, all rows":
                ratio, part_of = statistics.median(faster), memory / theirs
                verdicts.append(
                    _verdict(f"{part}: no slower with all rows", f"{ratio:.1f} times", ratio >= 1)
                )
                verdicts.append(
                    _verdict(f"{part}: at most half its memory", f"{part_of:.2f}", part_of <= 0.5)
                )
    head = ("parameters", "fit", "pairs", "CPU time", "times faster than laplace-torch", "peak memory")
    return (
        "## The fit beside laplace-torch\n\nThe GGN of the shipped chirp model (p = 72,496, d = 80) "
        f"over a random subset of m = {COUNT:,} and over the last layer (m = 10,320): by laplace-torch "
        f"0.3 and by us on {PAIRS:,} pairs with all d rows of each, and by us with random probes on ten "
        "times the pairs. Each fit was timed on two small numbers of pairs "
        f"({sizes[0]} and {sizes[1]}, with probes ten times as many; one and two batches for the last "
        f"layer), and the "
        "line through the two times taken to the whole: the cost is linear in pairs (see Growth). Each ran "
        f"in a process of its own, in turns, {repeats} times, on one thread; the time is that of the "
        "processor, the memory what lies beyond the imports. laplace-torch was given batches of "
        f"{THEIR_BATCH} pairs.\n\n{table(head, rows)}\n\n"
        + "\n".join(f"- {line}" for line in verdicts)
        + "\n- ten times faster at no more error in H than 2,000 pairs with all their rows have: "
        "**missed**. One probe per pair is the fast one, but its H has fewer rows and more error (see "
        "Probes); the ranking of the samples by it is as true."
    )


@dataclass(frozen=True)
class Fit:
    """CPU seconds of a fit, and its peak memory in GB."""

    seconds: float
    memory: float


def _whole(which: str, part: str, sizes: tuple[int, int]) -> Fit:
    """A fit on all pairs, by the line through its times on two small numbers of them."""
    more = 10 if "probe" in which else 1
    few, many = (_apart(which, part, n * more) for n in sizes)
    slope = (many.seconds - few.seconds) / (sizes[1] - sizes[0])
    return Fit(few.seconds + slope * (PAIRS - sizes[0]), many.memory)


def _verdict(target: str, found: str, met: bool) -> str:
    return f"{target}: {found}: {'met' if met else '**missed**'}"


def _apart(which: str, part: str, n: int) -> Fit:
    """One fit in its own process."""
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers", "--one", which, part, str(n)]
    out = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return Fit(**json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    if "--one" in sys.argv:
        _run(sys.argv[-3], sys.argv[-2], int(sys.argv[-1]))
    else:
        command("peers", __doc__, section)
