"""Does a rule tell the truth? Each against the definition, in the limit of a small posterior.

float64, the same draws for all rules, the same noise. Writes docs/studies/agreement.md.
"""

from __future__ import annotations

import copy
import sys
import time

from common import options, table, write

import flare
from flare.linearization import spearman

TEMPERATURES = (1.0, 1e-2, 1e-4, 1e-6)


def main() -> None:
    """Run and write the table."""
    started = time.time()
    given = options(__doc__, samples=48, draws=48, seed=0)
    rows, own = [], []
    for name in ("sines", "grid", "chirp"):
        model = flare.zoo.load(name)
        denoiser = flare.Denoiser(copy.deepcopy(model.denoiser.module).double(), "epsilon")
        pairs = flare.noising.pairs(model.data, model.schedule, n=10_000, seed=0, weighting=model.weighting)
        subset = flare.subsets.random(denoiser, count=800, seed=0)
        posterior = flare.posteriors.dense(denoiser, subset, pairs, "marglik", "calibrated")
        common = {"n": given.samples, "shape": model.shape, "directions": given.draws, "seed": given.seed}
        for tau in TEMPERATURES:
            cold = posterior.refit(posterior.prior_precision / tau, posterior.scale / tau)
            check = flare.check_linearization(
                denoiser,
                model.steps,
                cold,
                n=given.samples,
                shape=model.shape,
                draws=given.draws,
                seed=given.seed,
            )
            own.append(
                [
                    name,
                    f"{tau:g}",
                    f"{check.ratio:.3g}",
                    f"{check.correlation:.3f}",
                    check.verdict.split(":")[0],
                ]
            )
            print(f"{name} {tau}: {time.time() - started:.0f} s", file=sys.stderr, flush=True)
        rows.append([name, "tangent", f"{check.ratio:.3f}", f"{check.correlation:.3f}"])
        for rule in ("decoupled", "released"):
            score = flare.sample(denoiser, model.steps, cold, rule=rule, **common).score
            ratio = (score / check.monte_carlo).median().item()
            rows.append([name, rule, f"{ratio:.3g}", f"{spearman(score, check.monte_carlo):.3f}"])
    write(
        "agreement",
        "The rules against the definition",
        "python experiments/agreement.py",
        [
            f"The definition is Monte Carlo: {given.draws} models drawn from the posterior, rerun with the "
            f"same noise on {given.samples} samples (DDPM, every level, clipped, float64). The posterior has "
            "m = 800 random parameters, s = N/σ² and δ by the marginal likelihood; its covariance is "
            "multiplied by a temperature. Ratio: the median over the samples of the rule's trace over Monte "
            "Carlo's; correlation: Spearman's.",
            f"## In the limit of a small posterior (temperature {TEMPERATURES[-1]:g})",
            table(["model", "rule", "ratio", "rank correlation"], rows),
            "## Tangent at other temperatures (1 is the posterior itself)",
            table(["model", "temperature", "ratio", "rank correlation", "verdict"], own),
        ],
        started,
    )


if __name__ == "__main__":
    main()
