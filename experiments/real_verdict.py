"""The verdict on every data set, how it was chosen, and what the posterior adds: tables of the evidence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from flare.bench import metrics
from tools.document import table

from .candidates import (
    ACTIVATIONS,
    CANDIDATES,
    DATA_ALONE,
    EPISTEMIC,
    FOUR,
    INFLUENCE,
    NEIGHBORS,
    OLD,
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
from .detection import CHOOSING, REPORTING, SLOW, SLOW_CHOOSING, SLOW_REPORTING
from .subjects import TWICE

INITIALS = {NEIGHBORS: "n", ACTIVATIONS: "a", EPISTEMIC: "e", INFLUENCE: "i"}
#: score -> the candidate with it, and the one without
GAINS = {EPISTEMIC: (VERDICT, DATA_ALONE), INFLUENCE: (WITH_INFLUENCE, VERDICT)}
ERRORS = 2.0  # standard errors that a difference must exceed to be called one


def share_of_bad(study: str, quick: bool) -> str:
    """The bad samples among those of the reporting runs, in %."""
    return f"{100 * statistics.fmean(metrics.rate(run.bad) for run in reporting(study, quick)):.1f}"


def scores(quick: bool) -> list[str]:
    """The verdict and its scores on every data set."""
    studies, found = measured(quick), table_of(quick)
    if not studies:
        return []
    rows = [
        [
            study, share_of_bad(study, quick),
            *(str(interval_of(study, quick, name) or "–") for name in (VERDICT, *FOUR)),
        ]
        for study in studies
    ]  # fmt: skip
    means = [number(mean_over(found[name], studies)) for name in (VERDICT, *FOUR)]
    return [
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


def gains(quick: bool) -> dict[str, dict[str, Interval]]:
    """score -> study -> what a score that needs a posterior adds to the AUROC, in pairs on equal samples."""
    return {
        name: {
            study: one for study in measured(quick) if (one := interval_of(study, quick, *pair)) is not None
        }
        for name, pair in GAINS.items()
    }


def posterior(quick: bool) -> list[str]:
    """What the scores that need a posterior add to the verdict."""
    found = gains(quick)
    if not found[EPISTEMIC]:
        return []
    rows = [
        [study, *(_signed(one.mean, one.error) if (one := own.get(study)) else "–" for own in found.values())]
        for study in measured(quick)
    ]
    rows.append(
        ["**mean**", *(_signed(*average(list(own.values()))) if own else "–" for own in found.values())]
    )
    return [
        f"`{EPISTEMIC}` is the score of the verdict that needs a posterior: the first column has the AUROC "
        f"of the verdict minus that without it. `{INFLUENCE}` needs one, too, and is not a part of the "
        "verdict: the second column has the AUROC with it minus that of the verdict, where it was computed. "
        "Differences are in pairs on the same samples, with one standard error. A difference of at most "
        f"{ERRORS:g} standard errors is not measurable.",
        table(["what it adds to the AUROC", *GAINS], rows),
        *(f"`{name}` {describe_gains(own)}." for name, own in found.items() if own),
    ]


def describe_gains(found: dict[str, Interval]) -> str:
    """Where a score changes the AUROC measurably, and the mean over data sets."""
    signs = {study: sign(one.mean, one.error) for study, one in found.items()}
    helps, hurts = ([study for study in signs if signs[study] == which] for which in (1, -1))
    mean, error = average(list(found.values()))
    said = {1: "a gain", -1: "a loss", 0: "no measurable difference"}[sign(mean, error)]
    clauses = [
        f"raises the AUROC on {_listed(helps)}" if helps else "raises the AUROC nowhere",
        f"lowers it on {_listed(hurts)}" if hurts else "lowers it nowhere",
        "makes no measurable difference on the others",
    ]
    return f"{', '.join(clauses[:2])}, and {clauses[2]}; the mean is {_signed(mean, error)}, {said}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def sign(mean: float, error: float) -> int:
    """1 or −1 for a difference of more than two standard errors that three digits show, otherwise 0."""
    return 0 if abs(mean) <= max(ERRORS * error, 5e-4) else 1 if mean > 0 else -1


def _signed(mean: float, error: float) -> str:
    return f"{mean:+.3f}±{error:.3f}"
