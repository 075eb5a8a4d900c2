"""How many random directions rank samples as all of Σ does."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

import flare
from flare.propagation import ExactTangent
from flare.scores import Viewpoint, evaluate
from tools.document import table

from .harness import command, judge, spearman

COUNT, PAIRS, STEPS, DRAWS = 1000, 20_000, 10, 5
KS = (4, 16, 64, 256)
NAMES = ("trace", "expected_residual")
LEVELS = (0.05, 0.1, 0.2)  # where scores of trajectories look, as fractions of T
TARGET = 0.98


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    count, pairs, n = (100, 500, 20) if quick else (COUNT, PAIRS, 100)
    model = flare.bench.load("chirp")
    subset = flare.subsets.random(model.denoiser, count=count, seed=0)
    own = flare.noising.pairs(model.data, model.schedule, pairs, seed=0, weighting=model.weighting)
    posterior = flare.posteriors.dense(model.denoiser, subset, own)
    rule = ExactTangent(model.denoiser, subset, torch.eye(count))
    *_, last = flare.trajectories(
        model.denoiser, model.sampler("ddim", STEPS), posterior, n, model.shape, rule=rule, score="trace",
        batch_size=n,
    )  # fmt: skip
    S = last.spread.deviations  # ∂x_0/∂θ, (m, n, d)
    levels = [model.schedule.at_fraction(share) for share in LEVELS]
    at = Viewpoint(model.denoiser.wide(torch.float64).by("secant"), subset, levels)

    def scored(D: Tensor) -> list[Tensor]:
        dx = torch.tensordot(D.T.to(S), S, dims=1)  # δx_0 = S D with D Dᵀ = Σ
        spread = replace(last.spread, variance=dx.square().sum(0), deviations=dx, directions=D.to(S))
        return list(evaluate(NAMES, spread, at).values())

    exact, rows, verdicts = scored(posterior.exact_directions()), [], []
    for k in KS:
        draws = [
            scored(posterior.directions(k, torch.Generator().manual_seed(seed))) for seed in range(DRAWS)
        ]
        ranks = [[spearman(draw[i], exact[i]) for draw in draws] for i in range(len(NAMES))]
        rows.append([f"{k} random directions", *(f"{mean(rank):.4f} ({min(rank):.4f})" for rank in ranks)])
        if k == 16:
            verdicts = [
                judge(f"{name}: Spearman with 16 directions", mean(rank), TARGET, least=True)
                for name, rank in zip(NAMES, ranks, strict=True)
            ]
    return (
        f"## How many directions\n\nSpearman correlation with the same score by all of Σ: chirp, {count:,} "
        f"random parameters, {n} samples in {STEPS} DDIM steps. Mean over {DRAWS} draws of the directions, "
        f"and the least.\n\n{table(('scores', *(f'{name}, Spearman' for name in NAMES)), rows)}\n\n"
        + "\n".join(verdicts)
    )


if __name__ == "__main__":
    command("directions", __doc__, section)
