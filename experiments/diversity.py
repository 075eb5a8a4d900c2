"""What does keeping half do to diversity? Mode shares and distance to held-out data, over seeds.

Writes docs/studies/diversity.md.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict

import torch
from common import options, spread, table, write

import flare
from flare.evaluation import metrics, oracles

SCORES = ["trace", "off_manifold", "expected_residual"]
SETTINGS = {
    "s = 1, δ = 1e-6 (the paper's)": {},
    "calibrated": {"prior_precision": "marglik", "scale": "calibrated"},
}


def main() -> None:
    """Run and write the tables."""
    started = time.time()
    given = options(__doc__, seeds=3, samples=1_000, directions=4)
    sections = []
    for name, modes in (("grid", 9), ("sines", 2)):
        model = flare.zoo.load(name)
        denoiser = model.denoiser
        pairs = flare.noising.pairs(model.data, model.schedule, n=10_000, seed=0, weighting=model.weighting)
        subset = flare.subsets.random(denoiser, fraction=0.1, seed=0)
        held_out = flare.zoo.datasets.make(name, 4_000, seed=1)
        found: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)

        def judge(key, x, kept, bad, found=found, name=name, modes=modes, held_out=held_out):
            shares = oracles.modes(name, x[kept]).bincount(minlength=modes) / kept.sum()
            distance = metrics.energy_distance(x[kept], held_out)
            figures = (shares.min().item(), shares.max().item(), distance, 100 * metrics.rate(bad, kept))
            found[key].append(figures)

        for seed in range(given.seeds):
            for label, setting in SETTINGS.items():
                posterior = flare.posteriors.dense(denoiser, subset, pairs, **setting)
                result = flare.sample(
                    denoiser, model.steps, posterior, n=given.samples, shape=model.shape, score=SCORES,
                    directions=given.directions, seed=seed,
                )  # fmt: skip
                bad = oracles.hallucinated(name, result.samples, model.data)
                for score, values in result.scores.items():
                    judge((score, label), result.samples, flare.keep_fraction(values, 0.5), bad)
            chance = torch.rand(given.samples, generator=torch.Generator().manual_seed(seed))
            judge(("a random half", ""), result.samples, flare.keep_fraction(chance, 0.5), bad)
            judge(("all samples", ""), result.samples, torch.ones(given.samples, dtype=torch.bool), bad)
            print(f"{name}, seed {seed}: {time.time() - started:.0f} s", file=sys.stderr, flush=True)
        rows = [
            [score, label, *(spread(values) for values in zip(*figures, strict=True))]
            for (score, label), figures in found.items()
        ]
        header = ["kept by", "posterior", "smallest mode", "largest mode", "energy distance", "bad, %"]
        sections += [f"## {name}, {modes} modes", table(header, rows)]
    write(
        "diversity",
        "What a filter does to diversity",
        "python experiments/diversity.py",
        [
            f"{given.seeds} seeds × {given.samples:,} DDPM samples, a random tenth of the parameters, "
            f"{given.directions} directions; the half with the lowest scores is kept. Share of the smallest "
            "and of the largest mode, energy distance to 4,000 held-out samples, and the share of samples "
            "beyond what 99.9% of real ones keep; mean ± standard deviation over the seeds.",
            *sections,
            "Epistemic variance differs from mode to mode: keeping half by it alone drops whole modes, which "
            "a detection figure does not show. The expected residual of a calibrated posterior keeps them: "
            "it is what the demo filters by.",
        ],
        started,
    )


if __name__ == "__main__":
    main()
