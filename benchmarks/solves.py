"""What a matrix-free draw costs: iterations of conjugate gradients with and without the diagonal."""

from __future__ import annotations

import torch

import flare


def main() -> None:
    """Solve on the shipped models and print a table."""
    torch.set_num_threads(2)
    print("one matrix-free draw over all parameters, 300 pairs, s = 1, relative residual 1e-3\n")
    print(
        "| model | m | δ | iterations, plain | iterations, diagonal preconditioner |\n|---|---|---|---|---|"
    )
    for name in ("grid", "sines", "chirp"):
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
            print(f"| {name} | {subset.size:,} | {delta:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
