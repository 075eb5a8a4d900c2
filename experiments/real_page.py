"""docs/real-data.md and docs/evidence/real-data.md from the results: no figure in them is typed by hand.

The short page answers, with charts; the evidence has all tables. Both can be written from a part of the
results and then say what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.document import table, write_page

from . import (
    costs,
    evidence,
    keeping,
    lab,
    real_charts,
    real_tables,
    real_verdict,
    subset_choice,
    targets,
    unseen,
)
from .candidates import CANDIDATES, EPISTEMIC, INFLUENCE, THREE, VERDICT
from .choice import Interval, average, interval_of, mean_over, measured, number, rank, reporting, table_of
from .common import cores, typeset, versions
from .detection import JUDGED, REPORTING, reliability_job, runs_of, studies_of
from .lab import Job
from .subjects import BRIEF, REAL, draw_job

NAME = "real-data"
TABLES = f"evidence/{NAME}.md"
BLIND = 0.65  # an AUROC below this is little or nothing
SMALL = 0.005  # a difference of AUROCs that no choice should hang on


def write(jobs: Sequence[Job], docs: Path, quick: bool) -> Path:
    """Draw the pictures and write both pages from the jobs that are done; the path of the short one."""
    pictures = docs / "images" / "real"
    pictures.mkdir(parents=True, exist_ok=True)
    done = [job for job in jobs if job.done]
    counted = [job for job in done if job.run is not draw_job]  # samples are not always kept
    seconds = sum(job.found()["seconds"] for job in counted)
    last = [
        *_missing(jobs, quick),
        f"Written by `make real{'-quick' if quick else ''}`: {len(counted)} jobs, {seconds / 60:.0f} minutes "
        f"of one thread on {cores()}, including training of models that we do not ship; "
        f"{versions(lab.MEASURES)}",
    ]
    write_page(evidence.path_of(NAME, docs), _write_tables(done, pictures, quick, last))
    parts = ["# Does it work?", *(_write_answers(done, pictures, quick) or ["Not measured yet."]), *last]
    path = docs / f"{NAME}.md"
    write_page(path, typeset("\n\n".join(parts)) + "\n")
    return path


def _write_tables(done: Sequence[Job], pictures: Path, quick: bool, last: Sequence[str]) -> str:
    """The page with all tables."""
    sections: dict[str, Callable[[], list[str]]] = {
        "Scores": lambda: real_verdict.scores(quick),
        "Targets": lambda: targets.section(quick, done),
        "The choice": lambda: real_verdict.choosing(quick),
        "Does the posterior earn its place?": lambda: real_verdict.posterior(quick),
        "Repeatability": lambda: real_tables.repeatability(quick),
        "P-values": lambda: real_tables.p_values(quick),
        "Baselines": lambda: real_tables.baselines(quick),
        "Filters": lambda: real_tables.filters(quick),
        "Options": lambda: real_tables.options(quick),
        "Uncertain parameters": lambda: subset_choice.section(quick),
        "Cost": lambda: real_tables.cost(done),
        "A second judge": lambda: real_tables.second_judge(quick),
        "What the model never saw": lambda: unseen.section(done, unseen.classes_of(quick)),
        "Guidance": lambda: unseen.guidance(done),
        "Who says what is bad": lambda: real_tables.judges(done, studies_of(quick)),
        "Pictures": lambda: real_tables.pictures(quick, pictures),
    }
    parts = [f"All tables of [Does it work?]({NAME}.md)."]
    for heading, write_section in sections.items():
        parts += [f"## {heading}", *(write_section() or ["Not measured yet."])]
    return evidence.layout("Real data: all tables", "\n\n".join([*parts, *last]))


def _missing(jobs: Sequence[Job], quick: bool) -> list[str]:
    """What pages of a stopped run lack; only pictures need the samples."""
    left = [job for job in jobs if not job.done and job.run is not draw_job]
    if not left:
        return []
    whole = {
        study: sum(seed in REPORTING for _, seed, _ in runs_of(study, quick)) for study in studies_of(quick)
    }
    few = [
        f"{study} ({len(reporting(study, quick))} of {count})"
        for study, count in whole.items()
        if len(reporting(study, quick)) < count
    ]
    return [
        f"**This run is not complete**: {len(left)} of {len(jobs)} jobs are left. `make real` resumes it."
        + (f" Reporting runs that are done and have good and bad samples: {', '.join(few)}." if few else "")
    ]


def _write_answers(done: Sequence[Job], pictures: Path, quick: bool) -> list[str]:
    """The short page: one question per section."""
    if not measured(quick):
        return []
    return [
        _answer(done, quick),
        *_scores(pictures, quick),
        *_posterior(pictures, quick),
        *_noise(pictures, quick),
        *_filters(pictures, quick),
        *_targets(done, quick),
        *_limits(done, quick),
        *_choice(quick),
        "## How to rerun",
        f"`make real` writes this page, its charts and [all tables]({TABLES}). It resumes, and takes hours "
        "on two cores. `make real-quick` tries everything in minutes, and writes to runs/quick. We have not "
        "tested color photographs, latent models, GPUs or human judges.",
    ]


def _answer(done: Sequence[Job], quick: bool) -> str:
    """How well, compared with what, and at which price."""
    studies, found = measured(quick), table_of(quick)
    own = {name: mean_over(found[name], studies) or 0.0 for name in THREE}
    best = max(own, key=own.__getitem__)
    rivals = {name: found[name] for name in real_tables.RIVALS if name in found}
    widest = max((len(row) for row in rivals.values()), default=0)
    means = {n: mean_over(row, list(row)) or 0.0 for n, row in rivals.items() if len(row) == widest}
    compared = ""
    if means:
        rival = max(means, key=means.__getitem__)
        ours = number(mean_over(found[VERDICT], list(rivals[rival])))
        compared = f" The best of {len(rivals)} baselines, {rival}, has {number(means[rival])} on the "
        compared += f"sets that it supports, compared with {ours} for the verdict."
    timed = [value["verdict"] for study in costs.TIMED if (value := costs.ratios(done, study))]
    price = f" Scoring adds {100 * max(timed):.0f}% to the time of sampling in 50 steps." if timed else ""
    blind = _blind(quick)
    less = f" The verdict finds little or nothing on {' and '.join(blind)}." if blind else ""
    return (
        "The verdict finds bad samples with a mean AUROC of "
        f"**{number(mean_over(found[VERDICT], studies))}** over {len(studies)} models of images, time "
        "series, tables and points. AUROC is the probability that a bad sample scores higher than a good "
        f"one: 0.5 is chance, 1 is perfect. The best of the verdict's three scores alone, `{best}`, has "
        f"{number(own[best])}.{compared}{price}{less}"
    )


def _blind(quick: bool) -> list[str]:
    """The data sets on which the verdict finds little or nothing."""
    return [study for study in measured(quick) if table_of(quick)[VERDICT][study] < BLIND]


def _scores(pictures: Path, quick: bool) -> list[str]:
    studies, best = measured(quick), real_tables.find_best(quick)
    real_charts.draw_scores(pictures / "scores.svg", studies, quick, {k: v for k, (_, v) in best.items()})
    rows = [
        [
            study, BRIEF[study], "classifier" if study in REAL and REAL[study][0] in JUDGED else "rule",
            real_verdict.share_of_bad(study, quick), number(table_of(quick)[VERDICT][study]),
            f"{number(best[study][1])} {best[study][0]}" if study in best else "–",
        ]
        for study in studies
    ]  # fmt: skip
    return [
        f"## The verdict on {len(studies)} data sets",
        "![AUROC per data set](images/real/scores.svg)",
        "Bars are 95% intervals over samples, noise, uncertain parameters and, if there are two, trained "
        "models. We made no choices with these seeds. The *judge* decides which samples are bad. "
        "The *best baseline* is picked for each data set after the fact, which favors it.",
        table(["data set", "what it is", "judge", "bad, %", "verdict", "best baseline"], rows),
        f"[All scores, baselines and judges]({TABLES}).",
    ]


def _posterior(pictures: Path, quick: bool) -> list[str]:
    found = real_verdict.gains(quick)
    mean = average(list(found[EPISTEMIC].values()))
    change = {1: "A little.", 0: "Not measurably.", -1: "No."}[real_verdict.sign(*mean)]
    real_charts.draw_gains(pictures / "posterior.svg", found)
    return [
        "## Does the posterior earn its place?",
        "![What the posterior adds per data set](images/real/posterior.svg)",
        f"{change} `{EPISTEMIC}` is the one score of the verdict that needs a posterior. It "
        f"{_describe(found[EPISTEMIC])} "
        + (
            f"`{INFLUENCE}`, which is not part of the verdict, {_describe(found[INFLUENCE])} "
            if found[INFLUENCE]
            else ""
        )
        + f"A difference counts if it exceeds {real_verdict.ERRORS:g} standard errors.",
    ]


def _describe(found: dict[str, Interval]) -> str:
    return f"{real_verdict.describe_gains(found)}.".replace("; the mean", ". The mean")


def _noise(pictures: Path, quick: bool) -> list[str]:
    every = real_tables.load_all_noise(quick)
    if not every:
        return []
    real_charts.draw_noise(pictures / "noise.svg", every)
    lowest = min(every, key=lambda study: every[study].spearman["verdict"])
    value, name, study = min((n.spearman[name], name, study) for study, n in every.items() for name in THREE)
    pooled = real_tables.pool(every)
    odd = max(every, key=lambda study: abs(every[study].shares[0] - real_tables.ALPHAS[0]))
    shares = " and ".join(
        f"{100 * share:.1f}% have p ≤ {alpha:g}"
        for share, alpha in zip(pooled, real_tables.ALPHAS, strict=True)
        if alpha < 0.5
    )
    return [
        "## Repeatability and p-values",
        "![Rank correlation and p-values per data set](images/real/noise.svg)",
        "With other noise, the rank correlation with the first scores is at least "
        f"{every[lowest].spearman['verdict']:.2f} for the verdict ({lowest}) and {value:.2f} for a single "
        f"score (`{name}` on {study}). Of fresh real samples from all sets, {shares}. The set farthest off "
        f"is {odd}, with {100 * every[odd].shares[0]:.1f}% at {real_tables.ALPHAS[0]:g}.",
    ]


def _filters(pictures: Path, quick: bool) -> list[str]:
    found = keeping.every(quick)
    if not found:
        return []
    real_charts.draw_filters(pictures / "filters.svg", found)
    _, good = keeping.recommend(found)
    fewer = sum(own[keeping.REGION].bad < 0.5 * own[keeping.EVERYTHING].bad for own in found.values())
    return [
        "## Filters",
        "![Bad samples before and after filters](images/real/filters.svg)",
        "`result.keep(0.5)` keeps the most plausible half of every region. It more than halves the share of "
        f"bad samples on {fewer} of {len(found)} data sets, and preserves the shares of the modes and the "
        f"distance to held-out data on {good[keeping.REGION]}. Ranking across regions preserves both on "
        f"{good[keeping.RANK]}, a random half on {good[keeping.RANDOM]}.",
    ]


def _targets(done: Sequence[Job], quick: bool) -> list[str]:
    every = targets.every(quick, done)
    met, missed = ([target for target in every if target[3] is which] for which in (True, False))
    if not met and not missed:
        return []
    return [
        "## Targets",
        f"Set before we ran the reporting seeds: {len(met)} met, {len(missed)} missed.",
        "\n".join(
            f"- {word} {goal}: {', '.join(own)}."
            for word, which in (("Met:", met), ("**Missed**:", missed))
            for goal, own in _group(which).items()
        ),
    ]


def _group(found: Sequence[targets.Target]) -> dict[str, list[str]]:
    """What was aimed at -> what was measured, and the limit in parentheses."""
    out: dict[str, list[str]] = {}
    for where, goal, value, _ in found:
        what, limit = re.fullmatch(r"(.*?)( [≥≤] .*)?", goal).groups(default="")
        place = "" if where == targets.EVERY else f" on {where}"
        out.setdefault(what, []).append(value + place + (f" ({limit.strip()})" if limit else ""))
    return out


def _limits(done: Sequence[Job], quick: bool) -> list[str]:
    """What the verdict cannot see."""
    blind = _blind(quick)
    said = []
    if "tumors" in blind:
        best = real_tables.find_best(quick).get("tumors", ("", None))[1]
        ahead = sum(
            one.mean < -one.error
            for name in real_tables.RIVALS
            if (one := interval_of("tumors", quick, VERDICT, name)) is not None
        )
        said.append(
            "A row of *tumors* is bad if its columns violate an inequality that holds by definition, such "
            "as *worst* ≥ *mean*. Such a row can still be close to real rows, and the verdict does not "
            f"notice. {ahead} baselines do better, with an AUROC of at most {number(best)}."
        )
    found = {job.config["name"]: job.found() for job in done if job.run is reliability_job}
    if "air" in blind and "air" in found:
        own = found["air"]
        said.append(
            "A day of *air* is bad if a classifier of seasons is unsure about it. This judge is weak itself: "
            f"it calls {100 * own['blends']:.1f}% of blends of two days bad, and {100 * own['bad']:.1f}% of "
            "real days."
        )
    return (
        [
            "## What it cannot see",
            " ".join(said),
            "If your samples must obey a rule that you know, check it in code.",
        ]
        if said
        else []
    )


def _choice(quick: bool) -> list[str]:
    """How the verdict was chosen, in two sentences."""
    studies = measured(quick, choosing=True)
    if not studies:
        return []
    chosen, found = table_of(quick, choosing=True), table_of(quick)
    ranked = rank({name: chosen[name] for name in CANDIDATES if name in chosen}, studies)
    shared = [study for study in measured(quick) if all(study in found.get(name, {}) for name in CANDIDATES)]
    means = {name: mean_over(found[name], shared) or 0.0 for name in CANDIDATES if name in found}
    near = sum(abs(mean - means[VERDICT]) < SMALL for name, mean in means.items() if name != VERDICT)
    return [
        "## How the verdict was chosen",
        f"Of {len(CANDIDATES)} combinations that we fixed in code beforehand, it ranked number "
        f"{ranked.index(VERDICT) + 1} by mean AUROC on separate seeds. On the reported seeds, "
        f"{near} others are within {SMALL:g} of it, so the choice matters little.",
    ]
