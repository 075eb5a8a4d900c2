"""As the authors' published code does it, which differs from their paper.

δ by marginal likelihood, H summed over unweighted pairs, T = 1000, x̂0 clamped to ±2, FiLM after the SiLU and
a last layer that starts at zero. All parameters of sines and of the grid are uncertain, and 40% of those of
chirp's network, which has no blocks there and so ignores the time. LLLA is diagonal. BayesDiff draws 64
states at every step, and all methods score the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import flare
from flare import bench
from flare.bench import oracles
from flare.bench.baselines.bayesdiff import BayesDiff
from flare.propagation import Ingredients, Rule
from tools.document import table

from .claims import Claim
from .common import spread
from .lab import Found, Job, load_or_fit, load_or_train, pairs, training
from .paper_rule import PaperSums, Secants, Source, traces, weigh
from .powered import DIRECTIONS, detect

TITLE = "As the authors' code does it"
NETWORKS: dict[str, dict[str, Any]] = {"grid": {}, "sines": {}, "chirp": {"n_blocks": 0}}
FRACTION = {"chirp": 0.4}  # of the parameters that are uncertain; all of the others
CLAMP, SUMMED, DRAWS = 2.0, 100_000, 64
FULL = {"steps": None, "T": 1000, "n": 2_000, "count": 10_000}
QUICK = {"steps": 200, "T": 40, "n": 100, "count": 500}
SEEDS = range(2)
KINDS = {"far": "farthest fifth", "bad": "bad samples"}


def config(name: str, steps: int | None, T: int) -> dict[str, Any]:
    """The configuration of a model with the authors' layers and number of levels."""
    length = {} if steps is None else {"steps": steps}
    made = bench.configure(name, network={"released": True, **NETWORKS[name]}, **length)
    return {**made, "schedule": dict(flare.schedules.cosine(T).spec)}


class OnePath(BayesDiff):
    """BayesDiff along the samples of the network itself."""

    drives_itself = False

    @classmethod
    def build(cls, given: Ingredients) -> Rule:
        """64 draws at every step."""
        return cls(given.denoiser, given.subset, given.directions, len(given.steps), DRAWS, 1)

    def step(self, state: Any, row: Any, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Any]:
        """The plain prediction, and E and V after the row."""
        _, after = super().step(state, row, x, t, z)
        return self.denoiser(x, t, state.cond), after


class Watched(Source):
    """Another source, whose mean tr(J Σ Jᵀ) of every step is kept in `seen`."""

    def __init__(self, source: Source) -> None:
        self.source, self.seen = source, {}  # type: ignore[var-annotated]

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """What the source gives."""
        found = self.source(step, x, t)
        for name, own in found.items():
            self.seen.setdefault(name, {}).setdefault(step, []).append(float(own.sum(1).mean()))
        return found


def authors_job(name: str, seed: int, steps: int | None, T: int, n: int, count: int) -> Found:
    """Detection by FLARE with all coefficients, LLLA and BayesDiff; γ² and the weight of every step."""
    model = load_or_train(config(name, steps, T))
    net = model.denoiser.by("exact")
    sampler = flare.samplers.ddpm(model.schedule, clip=CLAMP)
    few = pairs(model, count, weighting="uniform")
    fraction = FRACTION.get(name)
    subset = (
        flare.subsets.everything(net) if fraction is None
        else flare.subsets.random(net, fraction=fraction, seed=0)
    )  # fmt: skip
    last = flare.subsets.last_layer(net)
    identity = {"name": name, "steps": steps, "T": T, "pairs": count}
    options = {"prior_precision": "marglik", "scale": float(SUMMED)}
    ours = load_or_fit(
        f"authors-{name}", identity, lambda: flare.posteriors.dense(net, subset, few, **options), net
    )
    llla = load_or_fit(
        f"authors-last-{name}", identity, lambda: flare.posteriors.diagonal(net, last, few, **options), net
    )
    draw = torch.Generator().manual_seed(seed)
    roots = {
        "FLARE": (subset, ours.directions(DIRECTIONS[name], draw)),
        "LLLA": (last, llla.directions(DIRECTIONS[name], draw)),
    }
    watched = Watched(Secants(net, roots))
    sums = PaperSums(net, sampler, [watched], 80)
    samples, scores = traces(model, sampler, sums, ours, n=n, seed=seed)
    theirs = flare.sample(
        net, sampler, llla, n, model.shape, rule=OnePath, score="trace", directions=16, seed=seed,
        batch_size=250,
    )  # fmt: skip
    assert torch.allclose(theirs.samples, samples, atol=1e-4)  # one path for all
    scores["BayesDiff"] = theirs.score
    distance = oracles.distance(name, samples)
    threshold = oracles.threshold(name, bench.datasets.make(name, 8_000, seed=2))
    return {
        "rows": {label: detect(score, distance, threshold) for label, score in scores.items()},
        "bad": int((distance > threshold).sum()),
        "prior_precision": {"FLARE": ours.prior_precision, "LLLA": llla.prior_precision},
        "gamma": {
            label: {step: sum(own) / len(own) for step, own in by.items()}
            for label, by in watched.seen.items()
        },
        "weights": {label: weight.tolist() for label, weight in weigh(net, sampler).items()},
    }


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per data set and seed."""
    size = QUICK if quick else FULL
    names = ("grid",) if quick else tuple(NETWORKS)
    out = [training(config(name, size["steps"], size["T"]), f"authors-{name}") for name in names]
    for name in names:
        for seed in SEEDS[:1] if quick else SEEDS:
            job = {"name": name, "seed": seed, **size}
            out.append(Job(f"authors-{name}-{seed}", authors_job, job, stage=2))
    return out


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """AUROCs, and a figure of γ² and weights by step."""
    found: dict[str, list[Found]] = {}
    every = [job for job in jobs if job.run is authors_job]
    for job in every:
        if job.done:
            found.setdefault(job.config["name"], []).append(job.found())
    left = sorted({job.config["name"] for job in every} - set(found))
    methods = list(next(iter(found.values()))[0]["rows"])
    columns = [
        (f"{name}, {words}", runs, kind)
        for name, runs in found.items()
        for kind, words in KINDS.items()
        if all(kind in one["rows"][methods[0]] for one in runs)
    ]
    rows = [
        [method, *(spread([one["rows"][method][kind] for one in runs]) for _, runs, kind in columns)]
        for method in methods
    ]
    deltas = ", ".join(
        f"{name} {runs[0]['prior_precision']['FLARE']:.3g} (LLLA {runs[0]['prior_precision']['LLLA']:.3g})"
        for name, runs in found.items()
    )
    draw_steps(found, pictures / "authors.png")
    return [
        __doc__.partition("\n\n")[2].strip(),
        "AUROC for the fifth of the samples that is farthest from the truth, and for bad samples, which are "
        "farther than 99.9% of real ones: mean ± standard deviation over "
        f"{len(next(iter(found.values())))} seeds of samples and directions; one trained model each. δ by "
        f"marginal likelihood: {deltas}. The authors sum H over 100,000 pairs; here it is estimated from "
        f"{FULL['count']:,} and scaled to as many. Bad samples: "
        + ", ".join(f"{name} {sum(one['bad'] for one in runs):,}" for name, runs in found.items()) + ".",
        table(["method, coefficients", *(words for words, *_ in columns)], rows),
        *([f"Not run yet: {', '.join(left)}."] if left else []),
        "![The size and the weight of every step](images/reproduction/authors.png)",
        "On the left, the mean of γ² = tr(J Σ Jᵀ) at every step; on the right, the share of each step in the "
        "score, by coefficients.",
    ]  # fmt: skip


def draw_steps(found: dict[str, list[Found]], path: Path) -> None:
    """γ² by step and data set, and the cumulative share of the steps by coefficients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for name, runs in found.items():
        gamma = runs[0]["gamma"]["FLARE"]
        total = len(runs[0]["weights"]["main"])
        left.plot([total - int(step) for step in gamma], list(gamma.values()), label=name)
    for name, weights in next(iter(found.values()))[0]["weights"].items():
        share = torch.tensor(weights) / sum(weights)
        right.step(torch.arange(len(share), 0, -1), share.cumsum(0), where="post", label=name)
    left.set(yscale="log", xlabel="t", ylabel="γ²")
    right.set(xlabel="t", ylabel="share of the score")
    for ax in (left, right):
        ax.invert_xaxis()
        ax.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """None: the paper does not say what its code does."""
    return []
