"""What the verdict was meant to reach, and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.document import table

from . import costs
from .candidates import THREE, VERDICT
from .choice import ELEVEN, mean_over, number, table_of
from .detection import studies_of
from .lab import Job
from .real_tables import Noise, find_lost, load_all_noise

MEAN = 0.89  # over the data sets of version 0.4
AUROC = {
    "digits": 0.93, "digits-early": 0.83, "mnist": 0.83, "shapes": 0.95, "air": 0.66, "power": 0.67,
    "chirp": 0.95, "damped": 0.975, "grid": 0.998, "sines-early": 0.998, "lattice": 0.998,
    "arcs-early": 0.95,
}  # fmt: skip
SAME_VERDICT, SAME_SCORE = 0.95, 0.85  # Spearman correlations between noise seeds
COST = 0.6  # of plain sampling in 50 steps
LEVEL = 0.05  # of the test of uniform p-values, over all data sets together
EVERY = "every set"
Target = tuple[str, str, str, bool | None]


def every(quick: bool, jobs: Sequence[Job]) -> list[Target]:
    """Where, the target, what was measured, and whether it is met; None if it is not measured yet."""
    return [*_detection(quick), *_baselines(quick), *_noise(quick), *_cost(jobs)]


def section(quick: bool, jobs: Sequence[Job]) -> list[str]:
    """All targets in one table."""
    rows = every(quick, jobs)
    words = {True: "met", False: "**missed**", None: "not measured yet"}
    missed = sum(row[3] is False for row in rows)
    return [
        f"Set before the reporting seeds were run; {sum(row[3] is True for row in rows)} are met and "
        f"{missed} missed.",
        table(["", "target", "measured", ""], [[*row[:3], words[row[3]]] for row in rows]),
    ]


def _detection(quick: bool) -> Iterator[Target]:
    found = table_of(quick).get(VERDICT, {})
    mean = mean_over(found, ELEVEN)
    yield (
        "the eleven sets of 0.4",
        f"mean AUROC ≥ {MEAN}",
        number(mean),
        None if mean is None else mean >= MEAN,
    )
    for study, goal in AUROC.items():
        if study in studies_of(quick):
            value = found.get(study)
            yield study, f"AUROC ≥ {goal:g}", number(value), None if value is None else value >= goal


def _baselines(quick: bool) -> Iterator[Target]:
    count, lost = find_lost(quick)
    said = f"{len(lost)} of {count} comparisons lost" if count else "–"
    yield EVERY, "no baseline ahead by over one standard error", said, None if not count else not lost


def _noise(quick: bool) -> Iterator[Target]:
    every = load_all_noise(quick)
    for label, names, goal in (
        ("the verdict", ("verdict",), SAME_VERDICT),
        ("each score", THREE, SAME_SCORE),
    ):
        study, value = _lowest(
            {f"{study}, {name}": noise.spearman[name] for study, noise in every.items() for name in names}
        )
        said = f"{value:.3f} on {study}" if study else "–"
        met = value >= goal if study else None
        yield EVERY, f"rank correlation of {label} between noises ≥ {goal:g}", said, met
    yield from _uniform(every)


def _uniform(every: dict[str, Noise]) -> Iterator[Target]:
    study, value = _lowest({study: noise.uniform for study, noise in every.items()})
    limit = LEVEL / max(1, len(every))
    said = f"{value:.4f} on {study}" if study else "–"
    goal = f"uniform p-values of real data, by Kolmogorov–Smirnov p ≥ {LEVEL:g}/{max(1, len(every))}"
    yield EVERY, goal, said, value >= limit if study else None


def _lowest(values: dict[str, float]) -> tuple[str, float]:
    study = min(values, key=values.__getitem__, default="")
    return study, values.get(study, 0.0)


def _cost(jobs: Sequence[Job]) -> Iterator[Target]:
    for study in costs.TIMED:
        price = costs.ratios(jobs, study).get("verdict")
        said = number(price, 2)
        yield study, f"cost ≤ {COST:g} × plain sampling", said, None if price is None else price <= COST
