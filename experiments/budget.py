"""How many parameters are enough? Nested random shares of them, from 1% to all, on grid, sines and chirp.

At a fixed λ the paper's b²·J Σ Jᵀ grows with the share, in every sample and at every step: see `_LAW`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench
from flare.bench import oracles
from flare.propagation import Tangent

from .budget_case import (
    DOUBTFUL,
    RELIABLE,
    Case,
    cases,
    detection_table,
    figure,
    growth_table,
    held_table,
)
from .budget_claims import ROUNDING, contracting, contraction, enough
from .budget_shares import Chosen, Shares
from .claims import Claim
from .lab import Found, Job, calibrate, load_or_fit, pairs, training
from .methods import PRINTED
from .models import config_of, model_of, truth_of
from .paper_rule import PaperSums, traces

TITLE = "Parameter budget"
FRACTIONS = (0.01, 0.05, 0.1, 0.3, 0.5, 1.0)
SERIES = (("grid", "dense"), ("sines-early", "dense"), ("chirp", "dense"), ("chirp", "diagonal"))
SEEDS = (10, 11)
PROBES = 2  # per pair, the same for all shares: the H of a share is then a part of the H of a larger one
TANGENTS = 64
CHECKED = 10  # samples whose sums have J at every step as well
FULL: dict[str, Any] = {
    "pairs": 20_000, "walk": None, "fractions": FRACTIONS,
    "largest": {("chirp", "dense"): 0.1},  # the largest share whose matrix is feasible, if not all
    # samples in all, and of them with exact sums and tangents; the sums have J at one step in `every`
    "n": {"grid": 1_500, "sines-early": 600, "chirp": 120},
    "exact": {"grid": 120, "sines-early": 100, "chirp": 20},
    "every": {"grid": 5, "sines-early": 10, "chirp": 30},
}  # fmt: skip
QUICK: dict[str, Any] = {
    "pairs": 500, "walk": 30, "fractions": (0.01, 0.02, 0.1, 0.15),
    "largest": {("chirp", "dense"): 0.02},
    "n": dict.fromkeys(FULL["n"], 100) | {"grid": 300},
    "exact": dict.fromkeys(FULL["n"], 20),
    "every": dict.fromkeys(FULL["n"], 3),
}  # fmt: skip
_LAW = (
    "With a fixed λ the term cannot contract. Let S ⊂ S′ be subsets, Σ_S = (H_SS + λI)⁻¹, and j a row of J. "
    "Then j_Sᵀ Σ_S j_S is the maximum of 2·jᵀv − vᵀ(H + λI)v over all v that are zero outside S, and those "
    "v are also allowed for S′. So the diagonal of J Σ Jᵀ can only grow with the share, at every state and "
    "step; the sums, whose weights a² and b² do not depend on the share, grow with it."
)


def fit(name: str, structure: str, fraction: float, count: int) -> Any:
    """The posterior over a share of the parameters, with s = 1 and δ = 1e-6."""
    model = model_of(name)
    subset = flare.subsets.random(model.denoiser, fraction=fraction, seed=0)

    def compute() -> Any:
        structured = getattr(flare.posteriors, structure)
        return structured(model.denoiser, subset, pairs(model, count), probes=PROBES, **PRINTED)

    config = {"name": name, "fraction": fraction, "count": count, "structure": structure, "probes": PROBES}
    return load_or_fit(f"budget-{name}", config, compute, model.denoiser)


def fit_job(name: str, structure: str, fraction: float, count: int) -> Found:
    """Fit one posterior for later jobs; m, and s and δ of the calibrated one."""
    posterior = fit(name, structure, fraction, count)
    tuned = calibrate(posterior, model_of(name).denoiser)
    return {"m": posterior.size, "scale": tuned.scale, "prior_precision": tuned.prior_precision}


def find_bad(name: str, samples: Tensor) -> Tensor:
    """Hallucinations on the grid; on the series, which have few or hardly any other, the farthest fifth."""
    truth = truth_of(name)
    distance = oracles.distance(truth, samples)
    if truth != "grid":
        return distance > distance.quantile(0.8)
    return distance > oracles.threshold(truth, bench.datasets.make(truth, 4_000, seed=2))


def choose_rows(bad: Tensor, count: int) -> Tensor:
    """All bad samples if they are fewer than half of `count`, and the first others; sorted."""
    if len(bad) <= count:
        return torch.arange(len(bad))
    chosen = torch.where(bad)[0][: count // 2]
    return torch.cat([chosen, torch.where(~bad)[0][: count - len(chosen)]]).sort().values


@dataclass(frozen=True)
class Walk:
    """The samples of one seed, which are bad, and which have exact sums and tangents.

    Args:
        name: of the model.
        seed: of the samples.
        n: how many.
        exact: how many have exact sums and tangents.
        walk: steps of the sampler; None for all.
    """

    name: str
    seed: int
    n: int
    exact: int
    walk: int | None

    @cached_property
    def model(self) -> bench.Benchmark:
        """The model."""
        return model_of(self.name)

    @cached_property
    def steps(self) -> flare.samplers.Steps:
        """The sampler's table."""
        return self.model.sampler("ddpm", self.walk)

    @property
    def options(self) -> dict[str, Any]:
        """Of `flare.sample`, with all samples in one batch."""
        return {"n": self.n, "seed": self.seed, "batch_size": self.n}

    @cached_property
    def bad(self) -> Tensor:
        """Which samples are bad, (n,)."""
        model = self.model
        plain = flare.sample(model.denoiser, self.steps, shape=model.shape, **self.options)
        return find_bad(self.name, plain.samples)

    @cached_property
    def rows(self) -> Tensor:
        """The samples with exact sums and tangents."""
        return choose_rows(self.bad, self.exact)


def sums_job(structure: str, fractions: list[float], every: int, count: int, **walk: Any) -> Found:
    """The paper's term at each step, and its sums, exactly, for all shares of one set of samples."""
    drawn = Walk(**walk)
    model, steps, rows = drawn.model, drawn.steps, drawn.rows
    fitted = {f"{f:g}": fit(drawn.name, structure, f, count) for f in fractions}
    both = {share: {"printed": one, "tuned": calibrate(one, model.denoiser)} for share, one in fitted.items()}
    smallest = next(iter(fitted))
    shares = Shares(model.denoiser, both, rows, every)
    sources = [shares]
    if structure == "dense":  # the states are the same for every structure
        sources.append(Shares(model.denoiser, {"check": {"printed": fitted[smallest]}}, rows[:CHECKED]))
    rule = PaperSums(model.denoiser, steps, sources)
    _, sums = traces(model, steps, rule, fitted[smallest], **drawn.options)
    return {
        "bad": drawn.bad[rows],
        **{f"own.{label}": torch.stack(values) for label, values in shares.traces.items()},  # (steps, rows)
        **{f"sum.{label}": values[rows] for label, values in sums.items()},
    }


def tangent_job(structure: str, fraction: float, count: int, **walk: Any) -> Found:
    """The tangent rule with the paper's s and δ for some samples, the influence of all; one share."""
    drawn = Walk(**walk)
    model, steps, rows = drawn.model, drawn.steps, drawn.rows
    printed = fit(drawn.name, structure, fraction, count)
    directions = printed.directions(TANGENTS, torch.Generator().manual_seed(0)).to(model.denoiser.dtype)
    rule = Chosen(model.denoiser, Tangent(model.denoiser, printed.subset, directions), rows)
    options = {"shape": model.shape, **drawn.options}
    tangent = flare.sample(model.denoiser, steps, printed, rule=rule, score="trace", **options)
    tuned = calibrate(printed, model.denoiser)
    influence = flare.score(
        model.denoiser, tuned, model.schedule, tangent.samples, score="influence", data=model.data
    )
    return {
        "tangent": tangent.score[rows],
        "tangent.bad": drawn.bad[rows],
        "influence": influence,
        "influence.bad": drawn.bad,
    }


def jobs(quick: bool) -> list[Job]:
    """The early model; then one fit per share; then per seed the exact sums, and the tangents per share."""
    size = QUICK if quick else FULL
    early = config_of("sines-early")
    assert early is not None
    out = [training(early, "sines-early")]
    for name, structure in SERIES:
        shares = [f for f in size["fractions"] if f <= size["largest"].get((name, structure), 1.0)]
        common = {"name": name, "structure": structure, "count": size["pairs"]}
        label = f"{name}-{structure}"
        out += [Job(f"budget-fit-{label}-{f:g}", fit_job, {**common, "fraction": f}) for f in shares]
        for seed in SEEDS:
            drawn = {**common, "seed": seed, "n": size["n"][name], "exact": size["exact"][name]}
            drawn["walk"] = size["walk"]
            sums = {**drawn, "fractions": shares, "every": size["every"][name]}
            out.append(Job(f"budget-sums-{label}-{seed}", sums_job, sums, stage=2))
            out += [
                Job(f"budget-tangent-{label}-{f:g}-{seed}", tangent_job, {**drawn, "fraction": f}, stage=2)
                for f in shares
            ]
    return out


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """The proof, the term and its sums, and what they detect."""
    found = cases(jobs)
    figure(found, pictures / "budget.png")
    config = found[0].config
    smallest = f"{100 * found[0].shares[0]:g}%"
    largest = next(case.shares[-1] for case in found if (case.name, case.structure) == ("chirp", "dense"))
    return [
        "Nested random shares of the parameters, and the paper's b²·JΣJᵀ without random directions: J has "
        "only d rows, so d reverse passes give all of it, and one product with the eigenvectors of H gives "
        f"JΣJᵀ. H is a mean over {config['count']:,} pairs with {PROBES} random probes each, the same for "
        "all shares, so that the H of a share is a part of the next. On chirp, Σ is dense up to "
        f"{100 * largest:g}%, and diagonal, and in that sense exact, for all shares: a "
        "matrix over all parameters does not fit into memory.",
        f"{len(SEEDS)} seeds; "
        + ", ".join(
            f"{case.config['exact']} samples with J at one step in {case.config['every']} ({case.title})"
            for case in found
        )
        + ". Between these steps JΣJᵀ is held, while a and b are those of every step. For the "
        f"{smallest} share of a dense Σ and {CHECKED} samples per seed it is computed at every step as well. "
        "How the two sums agree, in the worse of the seeds:",
        held_table(found),
        f"Sums that rank otherwise (a rank correlation below {RELIABLE}) are not reliable. They are marked "
        f"{DOUBTFUL} below, with the diagonal Σ of the same data, left out of the figure, and judge nothing.",
        "### The variance",
        _LAW,
        growth_table(found),
        _growth(found),
        "### Detection",
        "The AUROC for hallucinations on the grid, and for the farthest fifth on the series. The paper's "
        "traces have exact Σ with s = 1 and δ = 1e-6, and the tangent rule has the same s and δ and "
        f"{TANGENTS} directions. They score a part of the samples: the bad ones of "
        + ", ".join(f"{case.config['n']:,} ({case.title})" for case in found)
        + ", up to half of the part, and good ones. The influence has the tuned s and δ, and scores all "
        "samples, so that its AUROC is over another set. Rank correlations are with the largest share.",
        detection_table(found),
        "![The term of a step and the AUROC against the share](images/reproduction/budget.png)",
        "*The term, relative to the smallest share, and the AUROC of each score; unreliable sums are left "
        "out.*",
    ]


def _growth(found: Sequence[Case]) -> str:
    least = min(min(case.least_growth()) for case in found)
    text = (
        f"The smallest factor in any sample and at any step is {least:.4g}: the term never falls. "
        if least >= ROUNDING
        else f"The smallest factor is {least:.4g}, below 1 by more than rounding. "
    )
    fallen = contracting(found)
    return (
        text
        + "From the smallest share to the largest it grows "
        + ", ".join(f"× {case.growth('printed'):.3g} ({case.title})" for case in found)
        + ". With s and δ tuned for each share, as the paper says elsewhere, the term changes "
        + ", ".join(f"× {case.growth('tuned'):.3g} ({case.title})" for case in found)
        + (f": it contracts on {', '.join(fallen)}." if fallen else ": it does not contract either.")
    )


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """10 to 30% suffice, and the covariance contracts."""
    found = cases(jobs)
    return [enough(found), contraction(found)]
