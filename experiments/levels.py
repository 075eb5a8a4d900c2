"""At which reference level do the scores see most? AUROC over levels, on grid and chirp, over seeds.

Writes docs/studies/levels.md.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict

from common import options, spread, table, write
from detection import is_bad

import flare
from flare.evaluation import metrics
from flare.scores import SCORES, Reference

LEVELS = (0.02, 0.05, 0.1, 0.2, 0.3)
NAMES = ("off_manifold", "residual_variance")
SIZES = {"grid": 2_000, "chirp": 500}  # the grid has few bad samples, so it needs many


def main() -> None:
    """Run and write the tables."""
    started = time.time()
    given = options(__doc__, seeds=3, directions=8)
    sections = []
    for name, n in SIZES.items():
        model = flare.zoo.load(name)
        denoiser = model.denoiser
        pairs = flare.noising.pairs(model.data, model.schedule, n=20_000, seed=0, weighting=model.weighting)
        last = flare.subsets.last_layer(denoiser)
        fitted = {
            "random, m = 780": flare.posteriors.dense(
                denoiser, flare.subsets.random(denoiser, count=780, seed=0), pairs
            ),
            f"last layer, m = {last.size:,}, diagonal": flare.posteriors.diagonal(denoiser, last, pairs),
        }
        found: dict[tuple[str, str, float], list[float]] = defaultdict(list)
        for seed in range(given.seeds):
            for label, posterior in fitted.items():
                kept = []

                def keep(frames, kept=kept):
                    for frame in frames:
                        if frame.last:
                            kept.append(frame.spread)
                        yield frame

                flare.sample(
                    denoiser, model.steps, posterior, n=n, shape=model.shape, directions=given.directions,
                    seed=seed, batch_size=n, progress=keep,
                )  # fmt: skip
                bad = is_bad(name, kept[0].x)
                for level in LEVELS:
                    at = Reference(
                        denoiser, posterior.subset, model.schedule.at(round(level * model.schedule.T))
                    )
                    for score in NAMES:
                        found[label, score, level].append(metrics.auroc(SCORES[score](kept[0], at), bad))
            print(f"{name}, seed {seed}: {time.time() - started:.0f} s", file=sys.stderr, flush=True)
        rows = [
            [label, score, *(spread(found[label, score, level], 2) for level in LEVELS)]
            for label in fitted
            for score in NAMES
        ]
        sections += [
            f"## {name}",
            table(["posterior", "score", *(f"{level:g} of T" for level in LEVELS)], rows),
        ]
    write(
        "levels",
        "The reference level of the scores",
        "python experiments/levels.py",
        [
            "AUROC of the scores as detectors of bad samples (as in the detection studies) at several "
            f"reference levels: {given.seeds} seeds, {given.directions} directions, "
            + ", ".join(f"{n:,} samples of {name}" for name, n in SIZES.items())
            + "; s = 1, δ = 1e-6.",
            *sections,
        ],
        started,
    )


if __name__ == "__main__":
    main()
