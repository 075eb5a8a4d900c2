"""Our GGN against laplace-torch's on the same pairs; runs in the environment of `make crosscheck`.

Every fit is a process of its own: its CPU seconds, and its largest size beyond what the imports take.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import torch
from document import command, table
from harness import peak, timed
from torch import Tensor, nn

import flare

COUNT = 4412  # m, the paper's subset of chirp
THEIR_BATCH = 20  # pairs: the Jacobian of a batch, over all p, then takes 0.46 GB
FITS = ("theirs", "ours, all rows", "ours, probes")


class Joined(nn.Module):
    """A network as laplace-torch calls it: the time is the last column of its input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, joined: Tensor) -> Tensor:
        """Joined (B, d + 1) -> (B, d)."""
        return self.net(joined[:, :-1], joined[:, -1].long())


def problem(n: int) -> tuple[flare.zoo.Model, flare.noising.Pairs]:
    """The shipped chirp model and n of its training pairs, each with weight one."""
    model = flare.zoo.load("chirp")
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


def ours(n: int, part: str, probes: bool) -> Tensor:
    """Our H over the same subset: by all rows, or by as many probes a pair as "auto" takes for 20,000."""
    model, pairs = problem(n)
    subset = _subset(model, part)
    k = flare.curvature.probe_count("auto", 20_000, subset.size, 80) if probes else None
    return flare.curvature.ggn(model.denoiser, subset, pairs, probes=k)[0]


def _subset(model: flare.zoo.Model, part: str) -> flare.subsets.Subset:
    if part == "last_layer":
        return flare.subsets.last_layer(model.denoiser)
    return flare.subsets.random(model.denoiser, count=COUNT, seed=0)


def _run(which: str, part: str, n: int) -> None:
    """One fit, in this process: print what it took."""
    torch.set_num_threads(1)
    if which == "theirs":
        import laplace  # noqa: F401
    torch.randn(64, 64) @ torch.randn(64, 64)
    before = peak()
    H, seconds = timed(
        lambda: theirs(n, part) if which == "theirs" else ours(n, part, probes="all" not in which)
    )
    memory = peak() - before
    print(json.dumps({"seconds": seconds, "memory": memory, "trace": float(H.diagonal().double().sum())}))


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    plan = (
        [("subnetwork", 20, 200, 1)] if quick else [("subnetwork", 200, 2000, 2), ("last_layer", 20, 200, 2)]
    )
    rows = []
    for part, n, more, repeats in plan:
        took: dict[str, list[dict[str, float]]] = {which: [] for which in FITS}
        for _ in range(repeats):
            for which in FITS:
                took[which].append(_apart(which, part, more if "probes" in which else n))
        for which in FITS:
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(took["theirs"], took[which], strict=True)]
            best = statistics.median(run["seconds"] for run in took[which])
            memory = statistics.median(run["memory"] for run in took[which])
            pairs = more if "probes" in which else n
            spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f})"
            rows.append(
                [
                    part,
                    which,
                    f"{pairs:,}",
                    f"{best:.1f} s",
                    spread,
                    f"{memory:.2f} GB",
                    f"{took[which][0]['trace']:.4g}",
                ]
            )
    head = (
        "parameters",
        "fit",
        "pairs",
        "CPU time",
        "times faster than laplace-torch",
        "peak memory",
        "trace of H",
    )
    return (
        "## The fit beside laplace-torch\n\n"
        f"The GGN of the shipped chirp model (p = 72,496, d = 80) over a random subset of m = {COUNT:,} "
        f"and over "
        "the last layer (m = 10,320): by laplace-torch 0.3 and by us on the same pairs with all d rows "
        "of each, "
        "and by us with random probes on ten times the pairs. Both costs are proportional to the pairs "
        "(see "
        "Growth), so a tenth of the 2,000 and of the 20,000 pairs of a real fit is timed, with the "
        "probes that "
        '`probes="auto"` takes at 20,000. Each fit ran in a process of its own, in turns, on one '
        "thread; the "
        "time is that of the processor, the memory what lies beyond the imports. laplace-torch was given "
        f"batches of {THEIR_BATCH} pairs.\n\n{table(head, rows)}"
    )


def _apart(which: str, part: str, n: int) -> dict[str, float]:
    """One fit in a process of its own."""
    told = [sys.executable, "-W", "ignore", __file__, "--one", which, part, str(n)]
    out = subprocess.run(told, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


if __name__ == "__main__":
    if "--one" in sys.argv:
        _run(sys.argv[-3], sys.argv[-2], int(sys.argv[-1]))
    else:
        command("peers", __doc__, section)
