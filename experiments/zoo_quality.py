"""How good the shipped models are: 10,000 DDPM samples of each, over several seeds.

Prints the table of docs/evidence/models.md. `--check` exits with 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import sys

from torch import Tensor

import flare
from flare.bench import metrics, oracles

LIMITS = {
    "largest value / data's": (0.0, 1.5),
    "over 4σ from every mode": (0.0, 0.02),
    "smallest grid mode": (0.08, 0.14),
    "largest grid mode": (0.08, 0.14),
    "share of +sin": (0.45, 0.55),
}


def measure(name: str, x: Tensor, data: Tensor) -> dict[str, float]:
    """The figures of one model from its samples x, (n, d)."""
    figures = {"largest value / data's": (x.abs().max() / data.abs().max()).item()}
    if name == "grid":
        shares = oracles.modes(name, x).bincount(minlength=9) / len(x)
        figures["over 4σ from every mode"] = metrics.rate(oracles.distance(name, x) > 4)
        figures["smallest grid mode"] = shares.min().item()
        figures["largest grid mode"] = shares.max().item()
    if name == "sines":
        figures["share of +sin"] = metrics.rate(oracles.modes(name, x) == 0)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    passed = True
    print(f"| model | figure | mean of {options.seeds} seeds | range | limit |\n|---|---|---|---|---|")
    for name in oracles.BENCHMARKS:
        model = flare.bench.load(name)
        runs = [
            measure(
                name,
                flare.sample(
                    model.denoiser, model.sampler("ddpm"), n=options.n, shape=model.shape, seed=seed
                ).samples,
                model.data,
            )
            for seed in range(options.seeds)
        ]
        for figure in runs[0]:
            values = [run[figure] for run in runs]
            low, high = LIMITS[figure]
            passed &= low <= min(values) and max(values) <= high
            print(
                f"| {name} | {figure} | {sum(values) / len(values):.4f} | "
                f"{min(values):.4f} to {max(values):.4f} | {low:g} to {high:g} |",
                flush=True,
            )
    if options.check and not passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
