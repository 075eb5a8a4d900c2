"""What a matrix-free draw costs: iterations of conjugate gradients with and without the diagonal."""

from __future__ import annotations

import torch
from document import command, table

import flare


def section(quick: bool = False) -> str:
    """Solve on the shipped models and write it down."""
    rows = []
    for name in ("grid",) if quick else ("grid", "chirp"):
        model = flare.zoo.load(name)
        subset = flare.subsets.everything(model.denoiser)
        pairs = flare.noising.pairs(model.data, model.schedule, n=300, seed=0, weighting=model.weighting)
        for delta in (1.0, 0.1):
            cells = []
            for precondition in (False, True):
                posterior = flare.posteriors.matrix_free(
                    model.denoiser, subset, pairs, delta, precondition=precondition, max_iterations=400
                )
                try:
                    posterior.directions(1, torch.Generator().manual_seed(0))
                    cells.append(str(posterior.last_solve.iterations))
                except RuntimeError:
                    cells.append(f"over 400 (residual {posterior.last_solve.residual:.0e})")
            rows.append([name, f"{subset.size:,}", f"{delta:g}", *cells])
    head = ("model", "m", "δ", "iterations, plain", "iterations, diagonal preconditioner")
    return (
        "## Matrix-free draws\n\n"
        "One draw over all parameters by conjugate gradients: 300 pairs, s = 1, relative residual 1e-3.\n\n"
        f"{table(head, rows)}"
    )


if __name__ == "__main__":
    command("solves", __doc__, section)
