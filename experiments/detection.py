"""Do the scores find bad samples? All rules and scores on the shipped models, over seeds and subsets.

`python experiments/detection.py grid` and `… chirp` write docs/studies/detection-NAME.md.
Bad is known: on the grid, over 4σ from every mode; on chirp and damped, the 20% farthest from the manifold.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any

import torch
from common import options, spread, table, write
from sklearn.metrics import roc_auc_score
from torch import Tensor

import flare
from flare.evaluation import oracles

SCORES = ["trace", "off_manifold", "residual_variance", "expected_residual"]
LEVEL = 0.1
KEPT = 0.5


def is_bad(name: str, x: Tensor) -> Tensor:
    """Which samples are bad, by the truth."""
    distance = oracles.distance(name, x)
    return distance > 4 if name == "grid" else distance > distance.quantile(0.8)


def residual(model: flare.zoo.Model, x: Tensor) -> Tensor:
    """‖x − x̂0(αx)‖² at the reference level: one call, no posterior."""
    level = model.schedule.at(round(LEVEL * model.schedule.T))
    f = model.denoiser(level.alpha * x, torch.full((len(x),), level.time))
    p, q = flare.parameterizations.coefficients("epsilon", level.alpha, level.sigma)
    return (x - (p * level.alpha * x + q * f)).square().sum(1)


def posteriors(model: flare.zoo.Model) -> dict[str, Any]:
    """The posteriors to compare: the paper's s = 1, δ = 1e-6 on three subsets, and a calibrated one."""
    denoiser = model.denoiser
    pairs = flare.noising.pairs(model.data, model.schedule, n=20_000, seed=0, weighting=model.weighting)
    few = flare.noising.pairs(model.data, model.schedule, n=2_000, seed=0, weighting=model.weighting)
    random = flare.posteriors.dense(denoiser, flare.subsets.random(denoiser, fraction=0.1, seed=0), pairs)
    small = denoiser.parameter_count < 10_000
    everything = flare.subsets.everything(denoiser)
    scale = random.origin.statistics.calibrated_scale
    return {
        "random 10%": random,
        "last layer": flare.posteriors.diagonal(denoiser, flare.subsets.last_layer(denoiser), pairs)
        if not small
        else flare.posteriors.dense(denoiser, flare.subsets.last_layer(denoiser), pairs),
        "everything": flare.posteriors.low_rank(denoiser, everything, few, rank=64),
        "random 10%, calibrated": flare.posteriors.tuning.tuned(random, denoiser, "marglik", scale),
    }


def main() -> None:
    """Run and write the table."""
    name = sys.argv.pop(1)
    started = time.time()
    given = options(__doc__, seeds=5, samples=2_000, directions=4)
    model = flare.zoo.load(name)
    fitted = posteriors(model)
    aurocs: dict[tuple[str, str], list[float]] = defaultdict(list)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    base: list[float] = []
    for seed in range(given.seeds):
        plain = flare.sample(
            model.denoiser, model.steps, n=given.samples, shape=model.shape, seed=seed
        ).samples
        bad = is_bad(name, plain)
        base.append(bad.double().mean().item())

        def judge(key: tuple[str, str], score: Tensor, bad: Tensor = bad) -> None:
            aurocs[key].append(float(roc_auc_score(bad, score)))
            kept = flare.keep_fraction(score, KEPT)
            rates[key].append(bad[kept].double().mean().item())

        judge(("residual, no posterior", ""), residual(model, plain))
        for label, posterior in fitted.items():
            calibrated = "calibrated" in label
            rules = (
                ["tangent", "monte_carlo"] if calibrated else ["tangent", "decoupled", "released", "endpoint"]
            )
            for rule in rules:
                result = flare.sample(
                    model.denoiser,
                    model.steps,
                    posterior,
                    n=given.samples,
                    shape=model.shape,
                    rule=rule,
                    directions=given.directions if rule != "monte_carlo" else max(8, given.directions),
                    score=SCORES if rule == "tangent" else "trace",
                    level=LEVEL,
                    seed=seed,
                )
                for score, values in result.scores.items():
                    judge((f"{rule}, {score}", label), values)
        print(f"seed {seed}: {time.time() - started:.0f} s", file=sys.stderr, flush=True)
    rows = [
        [method, label, spread(values), spread([100 * r for r in rates[method, label]], 1)]
        for (method, label), values in sorted(aurocs.items(), key=lambda item: -sum(item[1]))
    ]
    truth = "over 4σ from every mode" if name == "grid" else "the 20% farthest from the manifold"
    intro = (
        f"{given.seeds} seeds × {given.samples:,} DDPM samples of the shipped {name} model, "
        f"{given.directions} directions. Bad samples are {truth}: {spread([100 * b for b in base], 1)}% of "
        "them. AUROC of each score as a detector of bad samples, and the share of bad samples (%) among the "
        "half with the lowest scores; mean ± standard deviation over the seeds. Reference level "
        f"{LEVEL} of T. Posteriors with s = 1 and "
        "δ = 1e-6 as in the paper, or with s = N/σ² and δ by the marginal likelihood (calibrated: "
        f"s = {fitted['random 10%, calibrated'].scale:.3g}, δ = "
        f"{fitted['random 10%, calibrated'].prior_precision:.3g}). "
        + ", ".join(f"{label}: {p.structure}, m = {p.size:,}" for label, p in fitted.items())
        + "."
    )
    body = table(["rule, score", "posterior", "AUROC", "bad among the kept half, %"], rows)
    write(
        f"detection-{name}",
        f"Detection on {name}",
        f"python experiments/detection.py {name} --samples {given.samples}",
        [intro, body],
        started,
    )


if __name__ == "__main__":
    main()
