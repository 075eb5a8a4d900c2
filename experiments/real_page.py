"""docs/real-data.md from the results of the study: no figure in it is typed by hand.

The page can be written from a part of the results; it then says what is missing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from flare.bench import metrics
from tools.document import table, write_page

from . import costs, real_parts, subset_choice, targets, unseen
from .candidates import (
    ACTIVATIONS,
    CANDIDATES,
    DATA_ALONE,
    EPISTEMIC,
    FOUR,
    INFLUENCE,
    NEIGHBORS,
    OLD,
    THREE,
    VERDICT,
    WITH_INFLUENCE,
)
from .choice import (
    DRAWS,
    Interval,
    average,
    interval_of,
    mean_over,
    measured,
    number,
    rank,
    reporting,
    table_of,
)
from .common import cores, typeset, versions
from .detection import (
    CHOOSING,
    REPORTING,
    SLOW,
    SLOW_CHOOSING,
    SLOW_REPORTING,
    runs_of,
    studies_of,
)
from .lab import Job
from .subjects import TWICE

INITIALS = {NEIGHBORS: "n", ACTIVATIONS: "a", EPISTEMIC: "e", INFLUENCE: "i"}


def write(jobs: Sequence[Job], docs: Path, quick: bool) -> Path:
    """Draw the sheets and write the page from the jobs that are done; its path."""
    pictures = docs / "images" / "real"
    pictures.mkdir(parents=True, exist_ok=True)
    done = [job for job in jobs if job.done]
    seconds = sum(job.found()["seconds"] for job in done)
    sections: dict[str, Callable[[], list[str]]] = {
        "": lambda: summary(quick, done),
        "Targets": lambda: targets.section(quick, done),
        "The choice": lambda: choosing(quick),
        "Does the posterior earn its place?": lambda: posterior(quick),
        "Repeatability and p-values": lambda: real_parts.repeatability(quick),
        "Baselines": lambda: real_parts.baselines(quick),
        "Filters": lambda: real_parts.filters(quick),
        "Options": lambda: real_parts.options(quick),
        "Uncertain parameters": lambda: subset_choice.section(quick),
        "Cost": lambda: real_parts.cost(done),
        "A second judge": lambda: real_parts.second_judge(quick),
        "What the model never saw": lambda: unseen.section(done, unseen.classes_of(quick)),
        "Guidance": lambda: unseen.guidance(done),
        "Who says what is bad": lambda: real_parts.judges(done, studies_of(quick)),
        "Pictures": lambda: real_parts.pictures(quick, pictures),
        "What is not here": lambda: [
            "Color photographs, latent models, runs on a GPU, second models of the larger images, and people "
            "as judges."
        ],
    }
    parts = ["# Real data: does the verdict find the bad samples?"]
    for heading, write_section in sections.items():
        found = write_section()
        if heading:
            parts.append(f"## {heading}")
        parts += found or ["Not measured yet."]
    parts += [
        *_missing(jobs, quick),
        f"Written by `make real{'-quick' if quick else ''}`: {len(done)} jobs, {seconds / 60:.0f} minutes "
        f"of one thread on {cores()}, training of what is not shipped included; {versions()}",
    ]
    path = docs / "real-data.md"
    write_page(path, typeset("\n\n".join(parts)) + "\n")
    return path


def _missing(jobs: Sequence[Job], quick: bool) -> list[str]:
    """What a page of a stopped run lacks."""
    left = [job for job in jobs if not job.done]
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


def summary(quick: bool, jobs: Sequence[Job]) -> list[str]:
    """What this is, the result in three sentences, and the scores on every data set."""
    studies, found = measured(quick), table_of(quick)
    what = (
        "Which samples of a diffusion model are bad, when no formula says so? Here `flare.fit` and "
        f"`Scorer.score` judge samples of models of {len(studies_of(quick))} data sets: images, time series, "
        "tables and points."
    )
    if not studies:
        return [what, "No reporting run is done yet."]
    both = [study for study in studies if study in found.get(OLD, {})]
    ours, theirs = (number(mean_over(found.get(name, {}), both)) for name in (VERDICT, OLD))
    best = max(THREE, key=lambda name: mean_over(found[name], studies) or 0.0)
    timed = [value["verdict"] for study in costs.TIMED if (value := costs.ratios(jobs, study))]
    price = f" It adds {100 * max(timed):.0f}% to the time of sampling in 50 steps." if timed else ""
    rows = [
        [
            study, f"{100 * statistics.fmean(metrics.rate(run.bad) for run in reporting(study, quick)):.1f}",
            *(str(interval_of(study, quick, name) or "–") for name in (VERDICT, *FOUR)),
        ]
        for study in studies
    ]  # fmt: skip
    means = [number(mean_over(found[name], studies)) for name in (VERDICT, *FOUR)]
    return [
        f"{what} The verdict has a mean AUROC of **{number(mean_over(found[VERDICT], studies))}** over "
        f"{len(studies)} data sets, and the best of its scores alone, `{best}`, "
        f"{number(mean_over(found[best], studies))}. On the {len(both)} sets where the rule of version 0.4 "
        f"was computed, it has {theirs} and the verdict {ours}.{price}",
        table(["data set", "bad, %", "verdict", *FOUR], [*rows, ["**mean**", "", *means]]),
        "AUROC: the chance that a bad sample has a higher score than a good one. All figures are of seeds "
        f"{_range(REPORTING)}, which took no part in any choice ({_range(SLOW_REPORTING)} for "
        f"{', '.join(SLOW)}), and of a second trained model for {', '.join(TWICE)}. The seed of a run draws "
        "its samples, the noise of the scores, the uncertain parameters and the training pairs. In brackets: "
        f"95% intervals from {DRAWS:,} bootstrap resamples of the runs and of the samples within runs. They "
        "include the chance in all of these, and in the models where there are two. They err on the wide "
        "side, because the chance of the samples enters twice.",
    ]


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 else " and ".join(map(str, seeds))


def choosing(quick: bool) -> list[str]:
    """All candidates on the choosing seeds, and on the others."""
    studies, others = measured(quick, choosing=True), measured(quick)
    if not studies:
        return []
    chosen, found = table_of(quick, choosing=True), table_of(quick)
    ranked = rank({name: chosen[name] for name in CANDIDATES if name in chosen}, studies)
    place, best = ranked.index(VERDICT) + 1, mean_over(chosen[ranked[0]], studies)

    shared = [study for study in others if all(study in found.get(name, {}) for name in CANDIDATES)]

    def cells(name: str) -> list[str]:
        both = ((chosen, studies), (found, shared))
        return [number(mean_over(own.get(name, {}), sets), 4) for own, sets in both]

    rows = []
    for count in (1, 2, 3, 4):
        for names in combinations(FOUR, count):
            listed = " + ".join(names)
            square, plain = (f"{how} of {listed}" for how in ("Σ max(0, z)²", "Σ z"))
            label = " ".join(INITIALS[name] for name in names)
            own = [*cells(listed), "", ""] if count == 1 else cells(square) + cells(plain)
            rows.append([label, *own])
    rest = [name for name in CANDIDATES if (name not in FOUR and " of all four" in name) or name == OLD]
    text = (
        f"{len(CANDIDATES)} candidates were fixed in `experiments/candidates.py` before a reporting seed was "
        f"run. The rule: the highest mean AUROC over the data sets, {len(studies)} here, on seeds "
        f"{_range(CHOOSING)} ({_range(SLOW_CHOOSING)} for {', '.join(SLOW)}). "
    )
    if place == 1:
        text += f"It chooses the verdict of the library ({number(best, 4)})."
    else:
        text += (
            f"It chooses *{_shorten(ranked[0])}* ({number(best, 4)}); the verdict of the library is number "
            f"{place} ({number(mean_over(chosen[VERDICT], studies), 4)})."
            f"{_compare(ranked[0], others, quick)}"
        )
    return [
        text,
        "n: neighbors, a: activations, e: epistemic_distance, i: influence. First the mean on the choosing "
        f"seeds, then on the reporting ones, over the {len(shared)} data sets where all were computed.",
        table(["", "Σ max(0, z)²", "reported", "Σ z", "reported"], rows),
        table(["", "choosing seeds", "reported"], [[_shorten(name), *cells(name)] for name in rest]),
    ]


def _shorten(name: str) -> str:
    """A candidate by the initials of its scores."""
    for score, initial in INITIALS.items():
        name = name.replace(f"of {score}", f"of {initial}").replace(f"+ {score}", f"+ {initial}")
    return name


def _compare(winner: str, studies: Sequence[str], quick: bool) -> str:
    """How far the winner is ahead of the verdict on the reporting seeds."""
    found = [one for study in studies if (one := interval_of(study, quick, winner, VERDICT)) is not None]
    if not found:
        return ""
    mean, error = average(found)
    said = "more" if abs(mean) > error else "less"
    return (
        f" On the reporting seeds the difference is {mean:+.4f} ± {error:.4f}, {said} than one standard "
        "error, in favor of the " + ("first." if mean > 0 else "library's.")
    )


def posterior(quick: bool) -> list[str]:
    """What the scores that need a posterior add to the verdict."""
    studies = measured(quick)
    if not studies:
        return []
    gains = {EPISTEMIC: (VERDICT, DATA_ALONE), INFLUENCE: (WITH_INFLUENCE, VERDICT)}
    found = {
        name: {study: one for study in studies if (one := interval_of(study, quick, *pair)) is not None}
        for name, pair in gains.items()
    }
    rows = [[study, *(_signed(own.get(study)) for own in found.values())] for study in studies]
    means = {name: average(list(own.values())) for name, own in found.items() if own}
    averages = [f"{means[name][0]:+.3f}±{means[name][1]:.3f}" if name in means else "–" for name in found]
    rows.append(["**mean**", *averages])
    return [
        f"`{EPISTEMIC}` is the score of the verdict that needs a posterior: the first column has the AUROC "
        f"of the verdict minus that without it. `{INFLUENCE}` needs one, too, and is not a part of the "
        "verdict: the second column has the AUROC with it minus that of the verdict, where it was computed. "
        "Differences are in pairs on the same samples, with one standard error; the sentences below count "
        "what exceeds it.",
        table(["what it adds to the AUROC", *gains], rows),
        *(_say_where(name, found[name], means[name]) for name in means),
    ]


def _say_where(name: str, found: dict[str, Interval], mean: tuple[float, float]) -> str:
    """Where a score changes the verdict by more than one standard error, and where it does not."""
    signs = {study: _sign(one.mean, one.error) for study, one in found.items()}
    helps, hurts, rest = ([study for study in signs if signs[study] == sign] for sign in (1, -1, 0))
    clauses = [
        f"raises the AUROC on {', '.join(helps)}" if helps else "raises the AUROC nowhere",
        *([f"lowers it on {', '.join(hurts)}"] if hurts else []),
        *([f"makes no difference on {', '.join(rest)}"] if rest else []),
    ]
    change = {1: "It helps", -1: "**It does harm**", 0: "**It brings nothing**"}[_sign(*mean)]
    return f"`{name}` {'; '.join(clauses)}. {change} on average."


def _sign(mean: float, error: float) -> int:
    """1 or −1 for a difference of more than one standard error that three digits show, otherwise 0."""
    return 0 if abs(mean) <= max(error, 5e-4) else 1 if mean > 0 else -1


def _signed(found: Interval | None) -> str:
    return "–" if found is None else f"{found.mean:+.3f}±{found.error:.3f}"
