"""A small version of `make reproduce`: one model and a few scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flare
from experiments import lab

lab.RUNS = Path("runs").resolve()  # workers import this module in the command's directory


def scores(config: Mapping[str, Any], seed: int) -> lab.Found:
    """The scores of a few samples."""
    model = lab.load_or_train(config)
    subset = flare.subsets.random(model.denoiser, count=40, seed=0)

    def fit() -> flare.posteriors.Posterior:
        return flare.posteriors.dense(model.denoiser, subset, lab.pairs(model, 1000), 1.0, 1.0)

    posterior = lab.load_or_fit("dense", config, fit, model.denoiser)
    steps = model.sampler("ddim", 10)
    drawn = flare.sample(
        model.denoiser, steps, posterior, n=20, shape=model.shape, directions=2, seed=seed, score="trace"
    )
    return {"score": drawn.score, "mean": float(drawn.score.mean())}


def main() -> None:
    """Run the jobs that are not done."""
    lab.RUNS = Path("runs").resolve()
    config = lab.bench.configure("sines", width=8, samples=300, steps=200, batch_size=16, warmup=10)
    jobs = [lab.Job("scores", scores, {"config": config, "seed": seed}) for seed in range(3)]
    lab.run([lab.training(config, "small"), *jobs], workers=1)
