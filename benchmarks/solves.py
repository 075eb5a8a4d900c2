"""What a matrix-free draw costs: iterations of conjugate gradients with and without a preconditioner."""

from __future__ import annotations

import torch

import flare
from tools.document import table

from .harness import command


def section(quick: bool = False) -> str:
    """Solve on the shipped models and write it down."""
    rows = []
    for name in ("grid",) if quick else ("grid", "chirp"):
        model = flare.bench.load(name)
        subset = flare.subsets.everything(model.denoiser)
        pairs = flare.noising.pairs(model.data, model.schedule, n=300, seed=0, weighting=model.weighting)
        for prior, scale in (("marglik", "calibrated"), (1.0, 1.0), (0.1, 1.0)):
            posterior = flare.posteriors.matrix_free(model.denoiser, subset, pairs, prior, scale)
            cells = []
            for precondition in (False, True):
                posterior.precondition = precondition
                try:
                    posterior.directions(1, torch.Generator().manual_seed(0))
                    cells.append(str(posterior.iterations))
                except RuntimeError:
                    cells.append(f"over 1000 (residual {posterior.residual:.0e})")
            numbers = (f"{posterior.scale:.3g}", f"{posterior.prior_precision:.3g}")
            rows.append([name, f"{subset.size:,}", *numbers, *cells])
    head = ("model", "m", "s", "δ", "iterations, plain", "iterations, preconditioned")
    return (
        "## Matrix-free draws\n\nOne draw over all parameters by conjugate gradients: 300 pairs, relative "
        "residual 1e-3. The first row of each model has the defaults, s = N/σ² and δ by the marginal "
        "likelihood; the preconditioner takes the 64 leading eigenvalues of H out.\n\n"
        f"{table(head, rows)}"
    )


if __name__ == "__main__":
    command("solves", __doc__, section)
