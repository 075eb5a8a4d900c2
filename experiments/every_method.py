"""Which score finds the bad samples of the paper's data sets: every method, from the results of `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.document import table

from .bench import MEMBERS, MIXTURES, NAMES, PUSHED, STRATA, TYPICAL, jobs
from .every_method_claims import claims
from .every_method_results import (
    ALL,
    BLIND,
    Rows,
    bad_count,
    cell,
    listed,
    mean,
    results,
    values,
)
from .lab import Job
from .methods import BY_REGION, DEFAULT
from .models import EARLY, subset_size, truth_of
from .recursion import PUSHED as PUSHED_RECURSION
from .recursion import SIZES, THOROUGH
from .verdicts import REFERENCE

__all__ = ["TITLE", "claims", "jobs", "section"]

TITLE = "Every method against the truth"


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """The detection and filter table of each data set."""
    found = results(jobs)
    methods = [method for method in found["sines"][0] if method not in (ALL, BLIND)]
    return [*_setup(found), *_truth(found, methods)]


def _setup(found: Mapping[str, Rows]) -> list[str]:
    """How many samples, of which models, and what every row of the tables is."""
    sizes = {name: SIZES[truth_of(name)] for name in NAMES}
    return [
        "Seeds and samples per seed: "
        f"{listed(f'{len(found[name])} × {n:,} ({name})' for name, n in sizes.items())}; mean ± standard "
        f"deviation. The models are the shipped ones; sines-early was stopped after {EARLY:,} steps, since "
        "the shipped sines model makes next to no bad samples. All methods score the same samples, except "
        "BayesDiff, HyperDM and generative uncertainty, which draw their own. What is said of sines in the "
        "table below is meant of sines-early, too. Symbols and words are explained in the "
        "[glossary](uncertainty.md#glossary).",
        table(["method", "what it is"], _methods()),
    ]


def _methods() -> list[list[str]]:
    """Every method in a line."""
    subsets = listed(f"{subset_size(name):,} ({name})" for name in NAMES)
    directions = "[directions](uncertainty.md#glossary)"
    exact = "all of Σ on grid and sines"
    rows = {
        "FLARE, main / appendix / released": "the paper's recursion over a random "
        f"[subset](uncertainty.md#glossary) of {subsets} parameters, with its s = 1, δ = 1e-6 and the "
        "coefficients of its main text, of its "
        "Appendix A, and of the released code. *All of Σ*, that is no random directions, on grid and sines; "
        f"{PUSHED_RECURSION} {directions} on chirp and damped",
        "FLARE, tangent": "the same posterior by the tangent rule, the exact first-order variance: "
        f"{exact}, {PUSHED} directions on chirp and damped",
        "FLARE, endpoint": "the same posterior without a trajectory: the variance of the clean sample that "
        "the denoiser predicts for the finished sample with a little noise",
        "all parameters, redrawn": "the recursion over all parameters, and over a subset that is drawn anew "
        f"at every step, as in the next section; grid and sines, seed {listed(map(str, THOROUGH))}",
        "LLLA, …": "the same rules over all of the last layer with the paper's s and δ: dense on grid and "
        "sines, one block per output, which is exact, on chirp and damped (for its tangent rule Kronecker "
        f"factors and {PUSHED} directions)",
        "FLARE calibrated, …": "the subset with s = N/σ² and δ by the marginal likelihood, by the tangent "
        "rule and the library's number of directions. *trace*: the variance of the sample; *off_manifold*: "
        "its part that denoising undoes; *expected_residual*: the mean square of what denoising changes, "
        "over the posterior; *residual_variance*: the variance of what denoising changes",
        "neighbors": "the mean distance to the 5 nearest training samples; no model",
        "activations": "the same between the network's activations; no posterior",
        "epistemic_distance": "the same between gradients of its answers, in units of the posterior: how "
        "unsure the network is about the difference; calibrated",
        f"**{DEFAULT}**": f"√Σ max(0, z)² of these three, each compared with {REFERENCE:,} real samples that "
        "no model saw",
        "…, by region": f"the filter keeps the same share of each of {STRATA} regions of the training data "
        f"(k-means) and treats all scores that {TYPICAL:.0%} of real samples stay below as ties; *random, "
        "by region* has the regions alone",
        "residual": "the squared distance between the sample and its denoised version; no posterior",
        "denoising error": "the network's error on the sample with noise, a training loss; no posterior",
        "last 10 / 100 iterates": "the variance of the predicted clean sample over the last 10 or 100 steps",
        "BayesDiff": "its own recursion on the last layer with δ = 1 and s = N, since its H is a sum over "
        f"the data: {exact}, as many directions as the tangent rule on the others",
        "generative uncertainty": "the entropy of a Gaussian that is fitted to the samples of a few models "
        "drawn from the calibrated last layer; DDIM",
        "ensemble": f"the variance over the samples of the model and of {MEMBERS} more, trained as long",
        "HyperDM": "the variance over ten models of a hypernetwork with shared noise, trained as long",
        "random, oracle": "chance, and the true distance: the floor and the ceiling of detection",
    }
    return [[name, text] for name, text in rows.items()]


def _truth(found: Mapping[str, Rows], methods: Sequence[str]) -> list[str]:
    parts = [
        "### Against the truth",
        "AUROC and average precision (AP) of each score as a detector of hallucinations (farther from the "
        "truth than 99.9% of real samples); AUROC for the fifth of the samples that is farthest; and "
        "what keeping half does: hallucinations before and among the kept, energy distance (× 1000) to "
        "4,000 held-out samples, and diversity (variance within modes, or spread of the parameters of the "
        "curves, over that of held-out data; 1 is right). *Mode shares* is the largest change of a mode's "
        "share by the filter, in percentage points. BayesDiff, HyperDM and generative uncertainty have "
        "other samples, and so another rate before. Sorted by the AUROC of the farthest fifth.",
    ]
    for name in NAMES:
        ran = [m for m in methods if values(found[name], m, "auroc_far")]
        ran.sort(key=lambda m: -mean(found[name], m, "auroc_far"))
        header = ["method", "AUROC", "AP", "AUROC, far fifth", "bad before, %", "bad kept, %"]
        header += ["energy distance", "diversity"]
        header += ["mode shares, points"] if name in MIXTURES else []
        total = len(found[name]) * SIZES[truth_of(name)]
        count = f"{bad_count(name, found[name]):,} of {total:,} shared samples"
        rows = [_truth_row(name, found[name], method) for method in (*ran, BLIND, ALL)]
        parts += [f"#### {name} (hallucinations: {count})", table(header, rows)]
    return parts + _halves(found)


def _truth_row(name: str, rows: Rows, method: str) -> list[str]:
    """A line of the table of a data set."""
    row = [method, *(cell(values(rows, method, k)) for k in ("auroc", "average_precision", "auroc_far"))]
    row += [cell(values(rows, method, k), 2, 100) for k in ("rate_before", "hallucination_rate")]
    row.append(cell(values(rows, method, "energy_distance"), 1, 1000))
    row.append(cell(values(rows, method, _diversity(name)), 2))
    if name in MIXTURES:
        row.append(cell(values(rows, method, "mode_change"), 1))
    return row


def _halves(found: Mapping[str, Rows]) -> list[str]:
    """How close to held-out data the kept halves are."""
    kinds = ("oracle", "random", BLIND, DEFAULT, BY_REGION)
    far = {n: {m: 1000 * mean(found[n], m, "energy_distance") for m in kinds} for n in NAMES}
    farther = [n for n in NAMES if far[n]["oracle"] > far[n]["random"]]
    closer = [n for n in NAMES if n not in farther]
    narrow = {
        n: [mean(found[n], m, _diversity(n)) for m in ("oracle", ALL)]
        for n in NAMES
    }  # fmt: skip
    less = [n for n, (oracle, every) in narrow.items() if oracle < every]
    return [
        "#### Ranking well is not enough",
        "Energy distance (× 1000) to held-out data of the half that is kept by the true distance, by chance, "
        "by chance in each region, by the verdict, and by the verdict in each region. The estimate is "
        "unbiased, so that it scatters around 0, and falls below it, where the distance is small; halves "
        "that are drawn by region are also more even than the independent samples that it takes them for.",
        table(
            ["data", *kinds],
            [[n, *(cell(values(found[n], m, "energy_distance"), 1, 1000) for m in kinds)] for n in NAMES],
        ),
        "By the mean over the seeds, the half that is nearest to the truth is farther from held-out data "
        f"than a random half on {listed(farther) or 'no set'}"
        + (f", and closer on {listed(closer)}" if closer else "")
        + f"; it is less diverse than all samples on {listed(less) or 'no set'}. We read it so: a "
        "sample near the truth is one in the middle of a mode, or an easy curve, so that a filter that ranks "
        "by the truth, or by a score that is close to it, narrows what it keeps. Keeping a fraction of every "
        "region and treating typical scores as ties works against it; the price is that some samples are "
        "kept that ranking alone would remove.",
    ]


def _diversity(name: str) -> str:
    return "within_mode_variance" if name in MIXTURES else "parameter_spread"
