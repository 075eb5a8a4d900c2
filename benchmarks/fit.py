"""How many rows a fit needs: error of H, of the scores and of their ranking against what the fit costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import flare
from flare.propagation import ExactTangent
from tools.document import table

from .harness import command, measure, spearman

PLANS = ((2000, None), (2000, 4), (2000, 16), (20_000, 1), (20_000, 2), (20_000, 4))  # pairs, probes per pair
STEPS = 10
ROWS_PER_PARAMETER = 8  # of probes="auto"


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    shrink, count = (20, 100) if quick else (1, 1000)
    model = flare.bench.load("chirp")
    denoiser = model.denoiser
    subset = flare.subsets.random(denoiser, count=count, seed=0)

    def fit(n: int, probes: int | None, seed: int) -> tuple[flare.posteriors.Dense, float]:
        own = flare.noising.pairs(model.data, model.schedule, n, seed, weighting=model.weighting)
        return measure(lambda: flare.posteriors.dense(denoiser, subset, own, 1.0, 1.0, probes=probes))

    pairs = flare.noising.pairs(model.data, model.schedule, 20_000 // shrink, 99, weighting=model.weighting)
    best = flare.posteriors.dense(denoiser, subset, pairs, probes=8)
    H = curvature(best)
    S = sample_with_jacobian(model, best, n=20 if quick else 100).deviations
    true = scores(S, best)
    rows = []
    for n, probes in PLANS:
        errors, score_errors, ranks, seconds = [], [], [], []
        for seed in (1, 2):
            own, took = fit(n // shrink, probes, seed)
            found = scores(S, own.refit(best.prior_precision, best.scale))
            errors.append(float((curvature(own) - H).norm() / H.norm()))
            score_errors.append(float((found / true - 1).abs().median()))
            ranks.append(spearman(found, true))
            seconds.append(took)
        many = n // shrink * (80 if probes is None else probes)
        rows.append(
            [f"{n // shrink:,}", probes or "all 80", f"{many / count:.0f}", _mean(seconds, ".1f"),
             _mean(errors, ".3f"), _mean(score_errors, ".3f"), _mean(ranks, ".5f")]
        )  # fmt: skip
    head = (
        "pairs",
        "probes per pair",
        "rows per parameter",
        "CPU seconds",
        "error of H",
        "error of the scores",
        "Spearman",
    )
    return (
        "## Probes\n\nH = (1/n) Σ JᵀJ costs a row of length m for each of the d outputs of each pair. A "
        "random sign vector u in place of the d rows, (Jᵀu)(Jᵀu)ᵀ, has the same mean for one row. Which "
        f"pairs and how many probes? Chirp, {count:,} random parameters; the reference is "
        f"{20_000 // shrink:,} other pairs with 8 probes each. The error of H is ‖H − H_ref‖/‖H_ref‖ "
        "(Frobenius), that of the scores the median relative error of the traces of 100 samples "
        f"({STEPS} DDIM steps, all of Σ, s and δ of the reference), Spearman that of their ranking. Two "
        f"seeds, their mean.\n\n{table(head, rows)}\n\nThe error of H falls with the number of rows, "
        "however they are spread over the pairs: for the H of 2,000 pairs with all their rows, probes "
        "need as many rows. The scores need fewer. An H of few rows has eigenvalues that are too small, "
        "so the variances come out too large by about one over the rows per parameter, for all samples "
        "alike: the ranking hardly notices, and more pairs help it more than more rows. So probes=auto "
        f"aims at {ROWS_PER_PARAMETER} rows per parameter, with at least one probe per pair."
    )


def sample_with_jacobian(model: flare.bench.Benchmark, posterior: flare.posteriors.Dense, n: int) -> Any:
    """The spread of n samples with S = ∂x_0/∂θ as their deviations, (m, n, d)."""
    rule = ExactTangent(model.denoiser, posterior.subset, torch.eye(posterior.size))
    *_, last = flare.trajectories(
        model.denoiser, model.sampler("ddim", STEPS), posterior, n, model.shape, rule=rule, score="trace",
        batch_size=n,
    )  # fmt: skip
    return last.spread


def curvature(posterior: flare.posteriors.Dense) -> Tensor:
    """H, (m, m)."""
    return (posterior.eigenvectors * posterior.eigenvalues) @ posterior.eigenvectors.T


def scores(S: Tensor, posterior: flare.posteriors.Dense) -> Tensor:
    """tr(S Σ Sᵀ) of each sample, (n,)."""
    moved = torch.einsum("mnd,mr->rnd", S.double(), posterior.eigenvectors)
    return (moved.square().sum(2) / posterior.precision[:, None]).sum(0)


def _mean(values: list[float], spec: str) -> str:
    return f"{sum(values) / len(values):{spec}}"


if __name__ == "__main__":
    command("fit", __doc__, section)
