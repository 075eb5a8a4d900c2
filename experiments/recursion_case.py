"""The figures of the recursion as printed: what every reading detects, its tables and its claims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flare.bench import metrics
from tools.document import table

from .claims import Claim
from .common import spearman, spread
from .lab import Found, Job
from .models import truth_of

SHIPPED = ("grid", "sines", "sines-early", "sines-16", "chirp", "damped")
FEW = (4, 16, 64)  # directions beside all of Σ
EXACT = {"grid": 60, "sines": 12}  # samples with all of Σ over all parameters
GOOD = 0.9  # an AUROC from here on is a detector
ALIKE = 0.95  # a rank correlation from here on is the same ranking
ENOUGH = 10  # bad samples, and others, over all seeds: an AUROC of fewer is an anecdote
READINGS = ("main", "appendix", "released", "tangent")
POSTERIORS = {
    "FLARE": "a random subset",
    "redrawn": "a subset redrawn at every step",
    "all parameters": "all parameters",
    "LLLA": "the last layer",
}


class Results:
    """What the jobs found, by model."""

    def __init__(self, jobs: Sequence[Job], clipped: bool = True) -> None:
        self.by_name: dict[str, list[Found]] = {}
        for one in jobs:
            if one.config.get("clipped") == clipped:
                self.by_name.setdefault(one.config["name"], []).append(one.found())

    def aurocs(self, name: str, label: str) -> list[float]:
        """The AUROC for bad samples, one per seed that has both kinds and this score."""
        out = []
        for found in self.by_name[name]:
            bad, score = found["distance"] > found["threshold"], found.get(f"score.{label}")
            if score is not None and 0 < bad.sum() < len(bad):
                out.append(metrics.auroc(score, bad))
        return out

    def far(self, name: str, label: str) -> list[float]:
        """The AUROC for the fifth of the samples that is farthest from the truth."""
        return [
            metrics.auroc(found[f"score.{label}"], found["distance"] > found["distance"].quantile(0.8))
            for found in self.by_name[name]
            if f"score.{label}" in found
        ]

    def counts(self, name: str) -> tuple[int, int]:
        """How many samples of all seeds are bad, and how many there are."""
        bad = [found["distance"] > found["threshold"] for found in self.by_name[name]]
        return sum(int(one.sum()) for one in bad), sum(map(len, bad))

    def has_enough(self, name: str) -> bool:
        """Whether there are enough bad samples, and enough others, to be told apart."""
        bad, count = self.counts(name)
        return min(bad, count - bad) >= ENOUGH

    def judged(self, name: str, label: str) -> list[float]:
        """The AUROCs for bad samples if there are enough of them, for the farthest fifth otherwise."""
        return self.aurocs(name, label) if self.has_enough(name) else self.far(name, label)

    def kind(self, name: str) -> str:
        """What `judged` is about."""
        return "bad samples" if self.has_enough(name) else "far fifth"

    def agreement(self, name: str, label: str, other: str) -> list[float]:
        """The rank correlation of two scores."""
        return [
            spearman(found[f"score.{label}"], found[f"score.{other}"])
            for found in self.by_name[name]
            if f"score.{label}" in found and f"score.{other}" in found
        ]


def cell(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or a dash."""
    return spread(values) if values else "–"


def detection_table(found: Results, names: Sequence[str], labels: Sequence[str] = tuple(POSTERIORS)) -> str:
    """The AUROCs of every reading, for bad samples and for the farthest fifth."""
    rows = []
    for name in names:
        for label in labels:
            text = POSTERIORS[label]
            cells = [cell(found.aurocs(name, f"{label}, {reading}")) for reading in READINGS]
            far = [cell(found.far(name, f"{label}, {reading}")) for reading in READINGS]
            if set(cells + far) != {"–"}:
                bad, count = found.counts(name)
                rows.append([f"{name} ({bad} of {count:,} bad)", text, *cells, *far])
    header = ["model", "posterior over", *READINGS, *(f"{reading}, far fifth" for reading in READINGS)]
    return table(header, rows)


def few(found: Results) -> Claim:
    """How many directions rank as all of Σ does, on the model where they do worst."""
    small = [name for name in SHIPPED if found.by_name.get(name) and truth_of(name) in EXACT]
    values = {
        k: [
            statistics.fmean(found.agreement(name, f"{k} directions, appendix", "FLARE, appendix"))
            for name in small
        ]
        for k in FEW
    }
    enough = [k for k, v in values.items() if min(v) >= ALIKE]
    return Claim(
        "Ours: a few random directions rank as all of Σ does, with the paper's s and δ",
        "–",
        "Spearman correlation with the exact trace (appendix): "
        + "; ".join(f"k = {k}: {min(v):.2f} to {max(v):.2f}" for k, v in values.items()),
        f"holds from {enough[0]} directions on: {ALIKE} or more on every model"
        if enough
        else f"does not hold: {max(FEW)} directions reach {min(values[max(FEW)]):.2f} on the worst model, "
        f"less than {ALIKE}",
    )


def schedules(found: Results) -> Claim:
    """Whether schedules with small β help the coefficients of the main text."""
    pairs = [("grid", ("grid-linear", "grid-capped")), ("sines-early", ("sines-linear", "sines-capped"))]
    rows, works = [], []
    for base, others in pairs:
        for name in (base, *(other for other in others if other in found.by_name)):
            values = found.judged(name, "FLARE, main")
            rows.append(f"{name} {spread(values, 2)} ({found.kind(name)})")
            if name != base and statistics.fmean(values) >= GOOD:
                works.append(name)
    return Claim(
        "Ours: with small β the main text's coefficients would work",
        "–",
        "AUROC with the main text's coefficients: " + ", ".join(rows),
        f"holds on {', '.join(works)}" if works else f"does not hold: no AUROC reaches {GOOD}",
    )
