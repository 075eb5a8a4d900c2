"""Theorem 1 of the paper: the error of a random subnetwork against its size m, on the sines model.

V = J_t (J_popᵀ J_pop)⁺ J_tᵀ over all parameters, Ṽ over a subset; the relative error of the trace.
Writes docs/studies/theorem1.md.
"""

from __future__ import annotations

import math
import statistics
import time

import torch
from common import options, table, write
from torch import Tensor

import flare

SIZES = (165, 330, 660, 1320, 2640, 5280)


def trace(J_pop: Tensor, J_t: Tensor, ridge: float) -> float:
    """Tr J_t (J_popᵀJ_pop/n + ridge)⁻¹ J_tᵀ; ridge 0 is the pseudoinverse, by least squares (Lemma 1)."""
    if ridge == 0:
        X = torch.linalg.lstsq(J_pop.T, J_t.T, driver="gelsd").solution
        return float(X.square().sum())
    # the push-through identity keeps the matrix at the number of rows: Jᵀ has m columns, K = J Jᵀ
    n = len(J_pop)
    K = J_pop @ J_pop.T / n + ridge * torch.eye(n, dtype=J_pop.dtype)
    cross = J_t @ J_pop.T / n**0.5
    return float((J_t.square().sum() - (cross @ torch.linalg.solve(K, cross.T)).trace()) / ridge)


def main() -> None:
    """Run and write the table."""
    started = time.time()
    given = options(__doc__, subsets=20, states=8, pairs=12)
    model = flare.zoo.load("sines")
    denoiser = flare.Denoiser(model.denoiser.module.double(), "epsilon")
    everything = flare.subsets.everything(denoiser)
    p = everything.size
    sections = []
    states: list[tuple[Tensor, Tensor]] = []

    def keep(frames):
        for frame in frames:
            if frame.index % 150 == 74:
                states.append((frame.x, torch.full((len(frame.x),), max(0, int(frame.step.time) - 1))))
            yield frame

    flare.sample(denoiser, model.steps, n=given.states, shape=model.shape, seed=0, progress=keep)
    J_t = torch.cat(
        [flare.jacobians.jacobian(denoiser, everything, x, t)[0].flatten(0, 1) for x, t in states]
    )
    for label, n, ridge in (
        (
            f"λ → 0, {given.pairs} pairs ({given.pairs * 10} rows, fewer than the smallest m)",
            given.pairs,
            0.0,
        ),
        ("λ = 1e-6 (the paper's setting), 300 pairs (3,000 rows)", 300, 1e-6),
    ):
        pairs = flare.noising.pairs(model.data.double(), model.schedule, n=n, seed=0, batch_size=n)
        (batch,) = pairs.batches("epsilon")
        J_pop = flare.jacobians.jacobian(denoiser, everything, batch.x, batch.t)[0].flatten(0, 1)
        full = trace(J_pop, J_t, ridge)
        rows, errors = [], []
        for m in SIZES:
            found = []
            for seed in range(given.subsets):
                index = torch.randperm(p, generator=torch.Generator().manual_seed(seed))[:m]
                value = trace(J_pop[:, index], J_t[:, index], ridge)
                found.append(abs(value - full) / full)
            errors.append(statistics.median(found))
            rows.append(
                [f"random, {m:,}", f"{statistics.fmean(found):.3g}", f"{errors[-1]:.3g}", f"{max(found):.3g}"]
            )
        last = torch.arange(p - 330, p)
        value = trace(J_pop[:, last], J_t[:, last], ridge)
        rows.append(["last layer, 330", *[f"{abs(value - full) / full:.3g}"] * 3])
        x, y = [math.log(m) for m in SIZES], [math.log(e) for e in errors]
        slope = statistics.linear_regression(x, y).slope
        sections += [
            f"## {label}",
            table(["subset, m", "mean error", "median", "largest"], rows),
            f"Slope of the median error against m in log-log: **{slope:.2f}** (the theorem's bound falls "
            "like m^(−1/2)).",
        ]
    write(
        "theorem1",
        "Theorem 1: a random subnetwork against all parameters",
        "python experiments/theorem1.py",
        [
            f"The sines model, p = {p:,}, float64; J_t at {given.states} samples × 4 steps of their "
            f"trajectories; {given.subsets} random subsets a size; |tr(V − Ṽ)| / tr(V).",
            *sections,
        ],
        started,
    )


if __name__ == "__main__":
    main()
