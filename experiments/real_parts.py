"""Further sections of docs/real-data.md: filters, cost, subsets, judges and pictures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from flare.bench import metrics
from tools.document import table

from . import choice, costs, keeping, sheets
from .candidates import CONTRAST, DEFAULT, FEATURES, NEIGHBORS, SMALL
from .choice import Run, complete, mean_over, number, reporting, table_of
from .costs import GRIDS, RANKED, TIMED, cost_job, describe, ratios
from .detection import JUDGED_TWICE, reliability_job, size_of
from .judge import QUANTILE
from .lab import Job
from .subjects import REAL, WHAT


def filters(quick: bool) -> list[str]:
    """What filters keep at an equal share."""
    studies = complete(quick)
    found = keeping.every(quick)
    recommended, good = keeping.recommend(found)
    names = list(next(iter(found.values())))
    bad = [
        [name, *(f"{100 * found[s][name].bad:.1f}" for s in studies), f"{good[name]} of {len(found)}"]
        for name in names
    ]
    change = [
        [name, *(number(found[s][name].change, 1) for s in studies)]
        for name in names
        if name != "all samples"
    ]
    distance = [
        [name, *(f"{1e3 * found[s][name].distance:.1f} ± {1e3 * found[s][name].error:.1f}" for s in studies)]
        for name in names
    ]
    said = (
        f"The recommended filter: **{recommended}**."
        if recommended
        else "No filter keeps both on more than half of the data sets."
    )
    return [
        "## Filters",
        f"Each keeps half of the samples, by *{DEFAULT}* unless said. *p > 0.05, the rest by chance* treats "
        "all samples as equal that look no more doubtful than 95% of real data, and chooses among them by "
        f"chance. Strata are {keeping.REGIONS} regions of the training data. Bad samples among the kept, in "
        "%, and on how many data sets the filter changes no share of a mode by more than "
        f"{keeping.POINTS:g} points and has an energy distance to held-out data no larger than that of the "
        "random filter:",
        table(["bad, %", *studies, "keeps both"], bad),
        "The largest change of the share of a mode or class, in points, all reporting seeds together; "
        "chance alone moves it, as the random filter shows:",
        table(["mode change", *studies], change),
        "The energy distance to held-out data in thousandths, ± its standard error over seeds:",
        table(["distance", *studies], distance),
        said,
    ]


def cost(jobs: Sequence[Job]) -> list[str]:
    """Calls and time beside plain sampling, and what more levels bring."""
    found = {job.config["study"]: job.found() for job in jobs if job.run is cost_job}
    timed, ranked = ([study for study in names if study in found] for names in (TIMED, RANKED))
    if not timed:
        return []
    steps = {study: found[study]["steps"] for study in timed}
    rows = []
    for levels, repeats in GRIDS:
        name = describe(levels, repeats)
        row = [name, str(len(levels) * repeats)]
        row += [f"{ratios(jobs, study)[name]:.2f}" for study in timed]
        for study in ranked:
            score = found[study].get(f"score.{name}")
            value = None if score is None else choice.judge_auroc(score, costs.bad_of(study, jobs))
            row.append(number(value))
        rows.append(row)
    more = [
        [
            "expected_residual, with sampling",
            "–",
            *(f"{ratios(jobs, s)['expected_residual']:.2f}" for s in timed),
        ],
        ["neighbors", "0", *(f"{ratios(jobs, s)['neighbors']:.3f}" for s in timed)],
    ]
    rows += [[*row, *("–" for _ in ranked)] for row in more]
    return [
        "## Cost",
        "Influence at levels × noises: network calls per sample, each with a backward pass, the time over "
        f"that of plain sampling ({', '.join(f'{study}: {steps[study]} steps' for study in timed)}), "
        "measured in turn on one thread of a busy machine, and the AUROC of influence alone on the first "
        "samples of one seed.",
        table(
            [
                "levels × noises",
                "calls",
                *(f"time, {s}" for s in timed),
                *(f"AUROC, {s}" for s in ranked),
            ],
            rows,
        ),
    ]


def subsets(quick: bool, jobs: Sequence[Job]) -> list[str]:
    """Random, sketch, sensitive and last layer at equal m, and smaller m."""
    studies, found, m = complete(quick), table_of(quick, choosing=False), size_of("digits", quick).m
    named = {
        f"random, m = {m:,}": "influence", "sketch": "influence, sketch", "sensitive": "influence, sensitive",
        "last layer": "influence, last layer",
        **{f"random, m = {small}": f"influence, m = {small}" for small in SMALL},
    }  # fmt: skip
    detected = [
        [
            kind, *(number(found.get(name, {}).get(study)) for study in studies),
            number(mean_over(found.get(name, {}), studies)),
        ]
        for kind, name in named.items()
    ]  # fmt: skip
    return [
        "## Which parameters",
        f"AUROC of influence with {m:,} coordinates of each kind (the last layer has fewer where it is "
        "smaller), and with fewer. A gradient costs the same for all of them but the last layer; m sets the "
        "time and the memory of the fit.",
        table(["AUROC", *studies, "mean"], detected),
        *_traces(jobs),
    ]


def _traces(jobs: Sequence[Job]) -> list[str]:
    """The error of the full trace, if it was measured."""
    for found in (job.found() for job in jobs if job.run is costs.trace_job):
        errors = found["errors"]
        sizes = list(errors["random"])
        return [
            "The error of the full trace, (tr Ṽ − tr V)/tr V, on the network of the grid with "
            f"{found['parameters']:,} parameters: the quantity of the paper's Theorem 1, λ = "
            f"{costs.RIDGE:g}. Mean over {costs.SEEDS} draws, and the range.",
            table(
                ["", *(f"m = {m}" for m in sizes)],
                [[kind, *(_errors(errors[kind].get(m, [])) for m in sizes)] for kind in errors],
            ),
        ]
    return []


def _errors(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):+.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):+.3f} to {max(values):+.3f})"


def second_judge(quick: bool) -> list[str]:
    """What the second judge says of every score."""
    names = (DEFAULT, "influence", NEIGHBORS, FEATURES, "error_profile", CONTRAST)
    rows, agree = [], []
    for study in (study for study in JUDGED_TWICE if study in complete(quick)):
        runs = reporting(study, quick)
        same = statistics.fmean(float((run.bad == run.panel).double().mean()) for run in runs)
        shares = [
            100 * statistics.fmean(metrics.rate(getattr(run, key)) for run in runs)
            for key in ("bad", "panel")
        ]
        agree.append(f"{study}: {shares[0]:.1f}% and {shares[1]:.1f}% bad, {100 * same:.1f}% alike")
        for name in names:
            pair = [_mean_of(runs, name, key) for key in ("bad", "panel")]
            if None not in pair:
                rows.append([study, name, *(number(value) for value in pair)])
    return [
        "### A second judge",
        "The first judge measures distances of features to training data, and so does `neighbors` in its "
        "way. The second is an ensemble of perceptrons that was trained on the held-out data alone and "
        "looks at entropy and disagreement only. A score that falls from the first to the second was "
        f"favored by the first. First and second judge on {'; '.join(agree)}.",
        table(["", "AUROC", "first judge", "second judge"], rows),
    ]


def _mean_of(runs: Sequence[Run], name: str, key: str) -> float | None:
    found = [choice.judge_auroc(run.scores.get(name), getattr(run, key)) for run in runs]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


def judges(jobs: Sequence[Job]) -> list[str]:
    """Who says what is bad."""
    rows = [
        [
            job.config["name"], f"{found['train']:,}", f"{found['test']:,}", f"{100 * found['accuracy']:.1f}",
            f"{100 * found['bad']:.1f}", f"{100 * found['blends']:.1f}",
        ]
        for job, found in ((job, job.found()) for job in jobs if job.run is reliability_job)
    ]  # fmt: skip
    head = ["", "training", "held out", "accuracy of the judge, %", "bad: held-out, %", "bad: blends, %"]
    return [
        "## Who says what is bad",
        "**Shapes**: a rule that code measures from pixels, no learned judge: exactly two full shapes on "
        "gray, of two kinds and two colors (`experiments/shapes.py`). **Synthetic sets**: the distance from "
        "the known truth, beyond what 99.9% of real samples keep; on the lattice, four standard deviations "
        "from every center. **The others**: a classifier that was trained on the real training data. A "
        "sample is bad if the entropy of its answer or the distance of its features from the nearest "
        f"training samples is beyond what {100 * QUANTILE:g}% of held-out samples keep, and, for the "
        "class-conditional model, if it is not of the class that was asked for. Blends are half-way between "
        "two held-out samples of different classes: bad for images, while a day of weather may be another "
        "day.",
        *([table(head, rows)] if rows else []),
    ]


def pictures(quick: bool, directory: Path) -> list[str]:
    """The most and the least plausible samples of every real study."""
    parts = ["## Pictures", "The first reporting seed, by the verdict; what is bad has a red frame or line."]
    for study in (study for study in REAL if study in complete(quick)):
        run = next(run for run in reporting(study, quick) if not run.member)
        sheets.draw(run.x, run.bad, run.scores[DEFAULT], directory / f"{study}.png")
        parts += [f"**{study}**: {WHAT[study]}.", f"![Samples of {study}](images/real/{study}.png)"]
    return parts
