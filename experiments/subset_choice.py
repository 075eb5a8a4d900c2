"""Which parameters should be uncertain? The verdict of `flare.fit(subset=...)` with other subsets."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import flare
from flare.bench import metrics
from tools.document import table

from .candidates import EPISTEMIC, VERDICT
from .choice import load_runs, mean_over, number
from .detection import REPORTING, draw, size_of
from .lab import Found, Job
from .subjects import Subject, load
from .verdict import fit

STUDIES, QUICK_STUDIES = ("digits", "digits-early", "power", "damped", "lattice"), ("grid",)
SEEDS = REPORTING[:2]
COUNT, PAIRS = 1_000, 2_000  # uncertain parameters, and the pairs by which the sensitive ones are chosen
Choose = Callable[[Subject, int, int], Any]
SUBSETS: dict[str, Choose] = {
    "random": lambda subject, count, seed: flare.subsets.random(subject.denoiser, count, seed=seed),
    "a sketch of all": lambda subject, count, seed: flare.subsets.sketch(subject.denoiser, count, seed=seed),
    "the largest gradients": lambda subject, count, seed: flare.subsets.sensitive(
        subject.denoiser, subject.pairs(PAIRS, seed), count
    ),
    "the last layer": lambda subject, count, seed: flare.subsets.last_layer(subject.denoiser),
}


def subset_job(study: str, seed: int, n: int, kind: str, quick: bool) -> Found:
    """The verdict and the epistemic distance of the samples of a reporting seed."""
    subject = load(study, 0, quick, size_of(study, quick).walk)
    x, cond = draw(study, 0, seed, n, quick).found()["samples"], subject.cond(n)
    count = min(20 if quick else COUNT, subject.denoiser.parameter_count)
    subset = SUBSETS[kind](subject, count, seed)
    scorer = fit(subject, seed, subset=subset, **({"pairs": 40} if quick else {}))
    result = scorer.score(x, cond or None)
    return {"m": subset.size, VERDICT: result.verdict.z, EPISTEMIC: result.scores[EPISTEMIC]}


def jobs(quick: bool) -> list[Job]:
    """One job per data set, seed and kind of subset."""
    return [
        Job(
            f"subset-{study}-{seed}-{place}", subset_job,
            {"study": study, "seed": seed, "n": size_of(study, quick).reporting, "kind": kind,
             "quick": quick}, stage=4,
        )
        for study in (QUICK_STUDIES if quick else STUDIES)
        for seed in (SEEDS[:1] if quick else SEEDS)
        for place, kind in enumerate(SUBSETS)
    ]  # fmt: skip


def section(quick: bool) -> list[str]:
    """The AUROC by kind of subset."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    sizes: dict[str, set[int]] = {}
    for job in (job for job in jobs(quick) if job.done):
        study, seed, kind = (job.config[key] for key in ("study", "seed", "kind"))
        run = next((r for r in load_runs(study, quick) if (r.member, r.seed) == (0, seed)), None)
        if run is None or not run.mixed:
            continue
        result = job.found()
        sizes.setdefault(kind, set()).add(result["m"])
        for name in (VERDICT, EPISTEMIC):
            own = found.setdefault(name, {}).setdefault(kind, {}).setdefault(study, [])
            own.append(metrics.auroc(result[name], run.bad))
    if not found:
        return []
    studies = list(dict.fromkeys(study for row in found[VERDICT].values() for study in row))
    rows = []
    for name, kinds in found.items():
        for kind, row in kinds.items():
            means = {study: statistics.fmean(values) for study, values in row.items()}
            m = sorted(sizes[kind])
            label = f"{m[0]:,}" if len(m) == 1 else f"{m[0]:,} to {m[-1]:,}"
            cells = [number(means.get(study)) for study in studies]
            rows.append(
                [
                    "verdict" if name == VERDICT else name,
                    kind,
                    label,
                    *cells,
                    number(mean_over(means, studies)),
                ]
            )
    seeds = " and ".join(map(str, SEEDS))
    return [
        f"Means over the reporting seeds {seeds}; the seed also draws the subset. m is the number of "
        "uncertain parameters.",
        table(["AUROC", "uncertain parameters", "m", *studies, "mean"], rows),
    ]
