"""Peak memory of fit and scored sampling on a network of 20 million parameters, beyond torch itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import flare

from .harness import command, peak, timed


class Wide(nn.Module):
    """An MLP with 20 million parameters for samples of 64 numbers."""

    def __init__(self, width: int = 2560) -> None:
        super().__init__()
        self.inp = nn.Linear(65, width)
        self.body = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, 64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """X (B, 64), t (B,) -> (B, 64)."""
        h = self.inp(torch.cat([x, t[:, None].to(x) / 100], dim=1))
        for layer in self.body:
            h = h + torch.nn.functional.silu(layer(h))
        return self.out(h)


def section(quick: bool = False) -> str:
    """Fit, sample, and write it down."""
    torch.randn(10, 10) @ torch.randn(10, 10)
    before = peak()
    denoiser = flare.Denoiser(Wide(256 if quick else 2560))
    schedule = flare.schedules.cosine(100)
    subset = flare.subsets.random(denoiser, count=2_000, seed=0)
    pairs = flare.noising.pairs(torch.randn(500, 64), schedule, n=500, seed=0)
    posterior, fitted = timed(
        lambda: flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1.0, scale=1.0, probes=1)
    )
    middle = peak()
    steps = flare.samplers.ddim(schedule, 10, clip=3.0)
    _, took = timed(lambda: flare.sample(denoiser, steps, posterior, n=64, shape=(64,), directions=4))
    p = denoiser.parameter_count
    return (
        f"## Memory of a larger network\n\nAn MLP with p = {p:,} (its weights take {4 * p / 1e9:.2f} GB; "
        f"the d × p Jacobian of one sample would take {4 * 64 * p / 1e9:.1f} GB), m = {subset.size:,}, d "
        f"= 64. Beyond the imports, a dense fit on 500 pairs peaked at {middle - before:.2f} GB "
        f"({fitted:.0f} CPU seconds), and 64 samples with 10 steps and 4 directions after it at "
        f"{peak() - before:.2f} GB ({took:.0f} s)."
    )


if __name__ == "__main__":
    command("memory", __doc__, section)
