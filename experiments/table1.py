"""Table 1 and Figure 1 of the paper from the runs of `powered`: tables, verdicts and claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.document import table

from .claims import Claim
from .common import spread
from .concepts import CALM, DOUBT, FAINT, INK, REAL, picture
from .intervals import Interval, gap_closure, mean_interval, probability
from .lab import Job
from .powered import (
    BLIND,
    DIRECTIONS,
    FULL,
    NAMES,
    QUICK,
    READINGS,
    SERIES,
    SUBSET,
    jobs,
    nodes_job,
    powered_job,
)

__all__ = ["TITLE", "claims", "jobs", "section"]

TITLE = "Table 1 and Figure 1"
COEFFICIENTS = {"main": "main text", "appendix": "Appendix A", "released": "released code"}
PAPER_SERIES = ("sines", "chirp", "damped")
METHODS = ("BayesDiff", "LLLA", "FLARE")
NEAR = 90.0  # %: a gap closure from here on counts as 100%
GOOD, DETECTS = 0.9, 0.8  # AUROCs: a detector, and one that finds something
PAPER = {  # gap closure in %, AUC, p
    ("sines", "BayesDiff"): (13.4, 0.615, 0.0001),
    ("sines", "LLLA"): (47.2, 0.581, 0.0201),
    ("sines", "FLARE"): (93.1, 0.500, 0.0012),
    ("chirp", "BayesDiff"): (41.7, 0.662, 0.0030),
    ("chirp", "LLLA"): (59.1, 0.589, 0.0116),
    ("chirp", "FLARE"): (74.3, 0.535, 0.0002),
    ("damped", "BayesDiff"): (10.4, 0.686, 0.0001),
    ("damped", "LLLA"): (-18.8, 0.775, 0.0066),
    ("damped", "FLARE"): (85.0, 0.509, 0.0002),
}
_LEFT = -200  # %: where the chart of gap closures ends
HOLDS, FAILS, UNTESTABLE = "holds", "fails", "not testable"


def label(method: str, reading: str, coefficients: str) -> str:
    """The name of a method in the results; BayesDiff has coefficients of its own."""
    return f"{method}, {reading}" + ("" if method == "BayesDiff" else f", {coefficients}")


@dataclass(frozen=True)
class Runs:
    """The runs of one data set: one per model and seed.

    Attributes:
        name: The data set.
        found: The results of `powered_job`.
    """

    name: str
    found: Sequence[Mapping[str, Any]]

    def auroc(self, method: str, what: str = "far") -> list[float]:
        """The AUROC for the farthest fifth or for bad samples, one per run that has it."""
        return [value for one in self.found if (value := one["rows"][method].get(what)) is not None]

    def after(self, method: str, key: str = "accuracy") -> list[float]:
        """The judge after a filter; for `random`, the mean over the random filters of the run."""
        return [statistics.fmean(one["rows"][m][key] for m in _filters(method)) for one in self.found]

    def before(self, method: str) -> list[float]:
        """The judge's accuracy before the filter, on samples of the same source."""
        return [one["before"][one["rows"][_filters(method)[0]]["source"]]["accuracy"] for one in self.found]

    def gap(self, method: str) -> Interval:
        """The gap closure in %, with its interval."""
        return gap_closure(self.after(method), self.before(method))

    def closed(self, method: str) -> list[float]:
        """By how much the filter lowers the judge's accuracy, one per run."""
        return [b - a for a, b in zip(self.after(method), self.before(method), strict=True)]

    def ahead(self, method: str, rival: str) -> Interval:
        """How much more of the judge's accuracy one filter removes than another, paired by run."""
        pairs = zip(self.closed(method), self.closed(rival), strict=True)
        return mean_interval([mine - other for mine, other in pairs])

    @property
    def sees(self) -> bool:
        """Whether the judge tells samples from real data before any filter."""
        return mean_interval([value - 0.5 for value in self.before("random")])[1] > 0

    def verdict(self, reading: str, coefficients: str) -> tuple[str, str]:
        """Whether FLARE beats BayesDiff, LLLA and random filters in one reading, and why not."""
        if not self.sees:
            return UNTESTABLE, "blind judge"
        mine = label("FLARE", reading, coefficients)
        rivals = {m: label(m, reading, coefficients) for m in METHODS[:2]} | {"a random filter": "random"}
        gaps = {text: self.ahead(mine, rival) for text, rival in rivals.items()}
        if all(low > 0 for _, low, _ in gaps.values()):
            return HOLDS, ""
        if behind := [text for text, (_, _, high) in gaps.items() if high < 0]:
            return FAILS, f"behind {_listed(behind)}"
        level = [text for text, (_, low, _) in gaps.items() if low <= 0]
        return UNTESTABLE, "level with " + ("all" if len(level) == len(gaps) else _listed(level))


def _filters(method: str) -> list[str]:
    return [f"random {i}" for i in range(BLIND)] if method == "random" else [method]


def results(jobs: Sequence[Job]) -> dict[str, Runs]:
    """The runs that are done, by data set."""
    found: dict[str, list[Any]] = {}
    for job in jobs:
        if job.run is powered_job and job.done:
            found.setdefault(job.config["name"], []).append(job.found() | {"model": job.config["which"]})
    return {name: Runs(name, found[name]) for name in NAMES if name in found}


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """Every method and reading: gap closures, judges and AUROCs."""
    found = results(jobs)
    quick = any(job.run is powered_job and job.config["n"] == QUICK["n"] for job in jobs)
    return [
        setup(found, QUICK if quick else FULL),
        "### Next to the paper",
        "Gap closure in % with 95% intervals. ″ means the same as the cell to its left, because BayesDiff "
        "has its own coefficients. For FLARE on damped, the paper's text says 76.2.",
        gap_table(found),
        "### Gap closure",
        "Gap closure in % with 95% intervals (Fieller's, over the runs); the judge's accuracy before and "
        "after, its AUC after, and *p*: Student's one-sided test that the filter lowers the accuracy. The "
        "last three columns are by how many points of accuracy FLARE's filter is ahead of the rival of the "
        "same reading, with intervals.",
        table(
            ["data", "method", "gap closure, %", "before", "after", "AUC", "p", *_RIVALS],
            [row for name in found if name in SERIES for row in _gap_rows(found[name])],
        ),
        "### Detection",
        "AUROC for bad samples (farther from the truth than 99.9% of real data) and for the farthest fifth, "
        "mean ± standard deviation over the runs.",
        table(["data", "method", "bad samples", "farthest fifth"], list(_auroc_rows(found))),
        *_nodes(jobs),
    ]


def _nodes(jobs: Sequence[Job]) -> list[str]:
    """What is lost by computing J Σ Jᵀ at some of the steps."""
    found = {job.config["name"]: job.found() for job in jobs if job.run is nodes_job and job.done}
    rows = [[name, *(f"{one[f'FLARE, {c}']:.3f}" for c in COEFFICIENTS)] for name, one in found.items()]
    if not rows:
        return []
    return [
        "### Some of the steps",
        "Rank correlation of the scores with those from all steps, with the same directions; 100 samples, H "
        "as printed.",
        table(["data", *COEFFICIENTS.values()], rows),
    ]


def setup(found: Mapping[str, Runs], size: Mapping[str, Any]) -> str:
    """How many samples, runs, parameters and directions."""
    subsets = ", ".join(f"{m:,} ({name})" for name, m in SUBSET.items())
    directions = ", ".join(f"{k} ({name})" for name, k in DIRECTIONS.items())
    bad = ", ".join(
        f"{name} {sum(one['bad'] for one in runs.found):,} of {size['n'] * len(runs.found):,}"
        for name, runs in found.items()
    )
    return (
        f"{brief(found, size)} Uncertain parameters: {subsets}; random directions: {directions}; s = 1, "
        f"δ = 1e-6; H from {size['count']:,} training pairs. Kept: 25% of chirp, 50% of the others. Random "
        f"filters: {BLIND} per run. Bad samples: {bad}."
    )


def brief(found: Mapping[str, Runs], size: Mapping[str, Any]) -> str:
    """How many samples, runs and models."""
    counts = [str(n) for n in sorted({len(runs.found) for runs in found.values()})]
    models = max(len({one["model"] for one in runs.found}) for runs in found.values())
    return (
        f"{size['n']:,} samples per run, and {' to '.join(dict.fromkeys((counts[0], counts[-1])))} runs per "
        f"data set on {models} trained model{'s' * (models > 1)}. Each run has its own samples, random "
        "subset and training pairs."
    )


_RIVALS = ("ahead of BayesDiff", "ahead of LLLA", "ahead of random filters")


def _gap_rows(runs: Runs) -> Iterator[list[str]]:
    for method in ("random", "oracle", *labels()):
        ahead = [""] * 3
        if method.startswith("FLARE"):
            _, reading, coefficients = method.split(", ")
            rivals = [label(m, reading, coefficients) for m in METHODS[:2]]
            ahead = [show(runs.ahead(method, rival), 100, 1) for rival in (*rivals, "random")]
        yield [
            runs.name, method, show(runs.gap(method)), spread(runs.before(method)),
            spread(runs.after(method)), spread(runs.after(method, "auc")),
            f"{probability(runs.closed(method)):.3f}", *ahead,
        ]  # fmt: skip


def labels() -> list[str]:
    """All methods in all readings; BayesDiff once per reading of H."""
    every = (label(m, r, c) for m in METHODS for r in READINGS for c in COEFFICIENTS)
    return list(dict.fromkeys(every))


def _auroc_rows(found: Mapping[str, Runs]) -> Iterator[list[str]]:
    for runs in found.values():
        for method in labels():
            bad = runs.auroc(method, "bad")
            yield [runs.name, method, spread(bad) if bad else "–", spread(runs.auroc(method))]


def show(interval: Interval, factor: float = 1.0, digits: int = 0) -> str:
    """The estimate with its interval."""
    center, low, high = (f"{factor * value:.{digits}f}" for value in interval)
    return f"{center} [{low}, {high}]"


# --- the page ----------------------------------------------------------------------------------------------


def gap_table(found: Mapping[str, Runs]) -> str:
    """The paper's nine rows and sines-early, in four readings, with random filters and the oracle."""
    rows = []
    for runs in (found[name] for name in SERIES if name in found):
        beside = [show(runs.gap(method)) for method in ("random", "oracle")]
        for method in METHODS:
            printed = PAPER.get((runs.name, method))
            cells = [
                show(runs.gap(label(method, reading, c)))
                for reading in READINGS
                for c in ("main", "appendix")
            ]
            if method == "BayesDiff":  # coefficients of its own
                cells[1] = cells[3] = "″"
            rows.append([runs.name, method, f"{printed[0]:.1f}" if printed else "–", *cells, *beside])
    return table(["data", "filter", "paper", *_COLUMNS, "random", "oracle"], rows)


_COLUMNS = [f"{r}, {c}" for r in READINGS for c in ("main", "Appendix A")]


def draw_gaps(found: Mapping[str, Runs], path: Path) -> None:
    """The gap closure of every filter with its interval, and what the paper prints for its method."""
    names = [name for name in SERIES if name in found]
    own = [m for m in labels() if not m.endswith("released")]
    rows = {"random": "random filter", "oracle": "oracle"} | {m: m.replace("appendix", "App. A") for m in own}
    with picture(path, len(names), (8.2, 3.6)) as axes:
        for ax, name in zip(axes, names, strict=True):
            for y, method in enumerate(rows):
                center, low, high = found[name].gap(method)
                printed = PAPER.get((name, method.partition(",")[0]))
                color = CALM if method.startswith("FLARE") else REAL if "," in method else INK
                ax.plot([max(low, _LEFT), min(high, 105)], [y, y], color=color, linewidth=1.4)
                ax.plot(max(center, _LEFT), y, "o", color=color, markersize=4)
                if printed:
                    ax.plot(printed[0], y, "x", color=DOUBT, markersize=5)
            ax.axvline(0, color=FAINT, linewidth=0.8)
            ax.set(xlim=(_LEFT - 5, 105), ylim=(len(rows) - 0.4, -0.6), yticks=range(len(rows)), xlabel="%")
            ax.set_yticklabels(rows.values() if ax is axes[0] else [])
            ax.tick_params(axis="y", left=False)
            ax.set_title(name, fontsize=10, color=INK)


def draw_aurocs(found: Mapping[str, Runs], path: Path) -> None:
    """The AUROC of every method: bad samples of the grid, the farthest fifth of the series."""
    names = [name for name in ("grid", *SERIES) if name in found]
    rows = [method for method in labels() if not method.endswith("released")]
    with picture(path, 1, (6.4, 3.4)) as (ax,):
        for name, marker, color in zip(names, "osD^v", (CALM, INK, FAINT, REAL, DOUBT), strict=False):
            cells = [found[name].auroc(method, "bad" if name == "grid" else "far") for method in rows]
            ax.plot([statistics.fmean(c) for c in cells], range(len(rows)), marker, color=color, label=name)
        ax.axvline(0.5, color=FAINT, linewidth=0.8, linestyle=":")
        ax.set(ylim=(len(rows) - 0.4, -0.6), yticks=range(len(rows)), xlabel="AUROC (0.5 is chance)")
        ax.set_yticklabels(rows)
        ax.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
        ax.legend(
            frameon=False, labelcolor=INK, ncols=5, loc="lower center", bbox_to_anchor=(0.3, 1.0),
            columnspacing=1.0, handletextpad=0.3,
        )  # fmt: skip


def verdict_table(found: Mapping[str, Runs]) -> str:
    """Whether FLARE beats both rivals and random filters, by data set and reading."""
    rows = []
    for runs in (found[name] for name in SERIES if name in found):
        said = [runs.verdict(reading, c) for reading in READINGS for c in ("main", "appendix")]
        rows.append([runs.name, *(f"**{v}**" + (f": {why}" if why else "") for v, why in said)])
    return table(["data", *_COLUMNS], rows)


def oracle(found: Mapping[str, Runs]) -> str:
    """What the filter by the true distance reaches by this measure."""
    gaps = {n: found[n].gap("oracle") for n in PAPER_SERIES if n in found}
    below = [n for n, (_, _, high) in gaps.items() if high < 0]
    text = _listed([f"{gap[0]:.0f}% on {n}" for n, gap in gaps.items()])
    return f"The oracle itself reaches {text}" + (
        f", significantly worse than no filter on {_where(below)}." if below else "."
    )


def auroc_table(found: Mapping[str, Runs]) -> str:
    """AUROCs: bad samples of the grid, the farthest fifth of the series."""
    names = [name for name in ("grid", *SERIES) if name in found]
    rows = []
    for method in (m for m in labels() if not m.endswith("released")):
        cells = [found[n].auroc(method, "bad" if n == "grid" else "far") for n in names]
        rows.append([method, *(f"{statistics.fmean(cell):.2f}" if cell else "–" for cell in cells)])
    return table(["method, H, coefficients", *names], rows)


# --- claims ------------------------------------------------------------------------------------------------


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """What Table 1 and Figure 1 say."""
    found = results(jobs)
    return [beats(found), up_to(found), significant(found), subnetwork(found), figure1(found), series(found)]


def _readings() -> list[tuple[str, str]]:
    return [(reading, c) for reading in READINGS for c in COEFFICIENTS]


def _said(reading: str, coefficients: str) -> str:
    return f"{reading}, {COEFFICIENTS[coefficients]}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _where(names: Sequence[str]) -> str:
    return "all three" if list(names) == list(PAPER_SERIES) else ", ".join(names) or "none"


def _range(values: Sequence[float]) -> str:
    """The smallest and the largest value with two digits, once if they are the same."""
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))


def _source(coefficients: str) -> str:
    """Where the coefficients are printed."""
    name = COEFFICIENTS[coefficients]
    return f"the formulas of {name if name[0].isupper() else f'the {name}'}"


def beats(found: Mapping[str, Runs]) -> Claim:
    """FLARE against BayesDiff and LLLA of the same reading, and against random filters."""
    said, counts, everywhere, refuted = [], {HOLDS: 0, FAILS: 0, UNTESTABLE: 0}, [], 0
    below = 0  # combinations whose interval lies below what the paper prints
    for reading, c in _readings():
        verdicts = {n: found[n].verdict(reading, c)[0] for n in PAPER_SERIES}
        for verdict in verdicts.values():
            counts[verdict] += 1
        said.append(f"{_said(reading, c)}: " + ", ".join(f"{n} {v}" for n, v in verdicts.items()))
        everywhere += [_said(reading, c)] if set(verdicts.values()) == {HOLDS} else []
        short = [found[n].gap(label("FLARE", reading, c))[2] < PAPER[n, "FLARE"][0] for n in PAPER_SERIES]
        refuted += FAILS in verdicts.values() or all(short)
        below += sum(short)
    early = [_said(r, c) for r, c in _readings() if found["sines-early"].verdict(r, c)[0] == HOLDS]
    if everywhere:
        verdict = f"holds with H {'; '.join(everywhere)}"
    else:
        kind = "does not hold" if refuted == len(said) else "holds in part" if counts[HOLDS] else UNTESTABLE
        verdict = (
            f"{kind}: ahead in {counts[HOLDS]} of {sum(counts.values())} combinations of data set, "
            f"curvature and coefficients, and behind in {counts[FAILS]}; it cannot be told apart in "
            f"{counts[UNTESTABLE]}; the paper's gap closure lies above the interval in {below}; "
            "on sines-early it is ahead " + (f"with {'; '.join(early)}" if early else "in none")
        )
    return Claim(
        "Table 1: FLARE beats BayesDiff and LLLA on all three series",
        " / ".join(f"{PAPER[n, 'FLARE'][0]:.1f}" for n in PAPER_SERIES) + "%",
        "; ".join(said),
        verdict,
    )


def up_to(found: Mapping[str, Runs]) -> Claim:
    """Whether FLARE closes nearly all of the gap."""
    gaps = {
        f"{n}, {_said(r, c)}": found[n].gap(label("FLARE", r, c))
        for n in (*PAPER_SERIES, "sines-early")
        for r, c in _readings()
        if found[n].sees
    }
    where = max(gaps, key=lambda key: gaps[key][0], default="")
    if not gaps:
        verdict = f"{UNTESTABLE}: the judge sees no difference before the filter"
    else:
        possible = any(high >= NEAR for _, _, high in gaps.values())
        kind = "holds" if gaps[where][0] >= NEAR else UNTESTABLE if possible else "does not hold"
        verdict = f"{kind}: at most {show(gaps[where])}% ({where})"
    return Claim(
        "Up to 100% gap closure",
        "93.1% at most in its table",
        "; ".join(f"{key} {show(gap)}" for key, gap in gaps.items()),
        verdict,
    )


def significant(found: Mapping[str, Runs]) -> Claim:
    """Whether FLARE's gap closure is above 0."""
    p = {
        (n, r, c): probability(found[n].closed(label("FLARE", r, c)))
        for n in PAPER_SERIES
        for r, c in _readings()
    }
    small = [f"{n} ({_said(r, c)})" for (n, r, c), value in p.items() if value < 0.05]
    sets = {n for (n, _, _), value in p.items() if value < 0.05}
    kind = "holds" if len(sets) == len(PAPER_SERIES) else "holds in part" if sets else "does not hold"
    return Claim(
        "FLARE's gap closure is significant on all three series",
        "bootstrap p of 0.0012, 0.0002, 0.0002",
        "; ".join(f"{n}, {_said(r, c)} p = {value:.3f}" for (n, r, c), value in p.items()),
        f"{kind}: p < 0.05 in {len(small)} of {len(p)} combinations"
        + (f"; {', '.join(small)}" if 0 < len(small) <= 4 else ""),
    )


def subnetwork(found: Mapping[str, Runs]) -> Claim:
    """A random subset against the last layer in the same reading."""
    said, above, below = [], 0, 0
    for reading, c in _readings():
        pairs = {
            n: found[n].ahead(label("FLARE", reading, c), label("LLLA", reading, c)) for n in PAPER_SERIES
        }
        above += sum(low > 0 for _, low, _ in pairs.values())
        below += sum(high < 0 for _, _, high in pairs.values())
        said.append(f"{_said(reading, c)}: " + ", ".join(f"{n} {show(i, 100, 1)}" for n, i in pairs.items()))
    total = len(said) * len(PAPER_SERIES)
    kind = (
        "holds" if above == total else "holds in part" if above else "does not hold" if below else UNTESTABLE
    )
    return Claim(
        "A random subnetwork filters better than the last layer",
        "gap closure, all three series",
        "points of accuracy ahead of the last layer. " + "; ".join(said),
        f"{kind}: significantly better in {above} of {total} combinations, worse in {below}",
    )


def figure1(found: Mapping[str, Runs]) -> Claim:
    """Samples between the modes of the grid."""
    aurocs = {
        (m, r, c): found["grid"].auroc(label(m, r, c), "bad")
        for m in METHODS
        for r, c in _readings()
        if c != "released"
    }
    mean = {key: statistics.fmean(values) for key, values in aurocs.items()}
    shown = [(r, c) for m, r, c in aurocs if m == "FLARE"]
    figures = "; ".join(
        f"{_said(r, c)} " + ", ".join(f"{m} {mean[m, r, c]:.2f}" for m in METHODS) for r, c in shown
    )

    def is_ahead(r: str, c: str, rival: str) -> bool:
        pairs = zip(aurocs["FLARE", r, c], aurocs[rival, r, c], strict=True)
        return mean_interval([mine - other for mine, other in pairs])[1] > 0

    good = [
        (r, c)
        for r, c in shown
        if mean["FLARE", r, c] >= DETECTS and all(is_ahead(r, c, m) for m in METHODS[:2])
    ]
    works, lost = (
        " and ".join(
            f"{_range([mean['FLARE', r, c] for r, c in part if c == each])} by {_source(each)}"
            for each in dict.fromkeys(c for _, c in part)
        )
        for part in (good, [rc for rc in shown if rc not in good])
    )
    if not good:
        verdict = f"does not hold: AUROC {lost}"
    else:
        verdict = f"holds in part: AUROC {works}, but {lost}" if lost else f"holds: AUROC {works}"
    return Claim(
        "Figure 1: FLARE finds the samples between the modes, BayesDiff and LLLA do not",
        "a figure",
        f"AUROC for bad samples: {figures}",
        verdict,
    )


def series(found: Mapping[str, Runs]) -> Claim:
    """Whether the recursion detects anything on the paper's series."""
    mean = {
        (n, r, c): statistics.fmean(found[n].auroc(label("FLARE", r, c)))
        for n in PAPER_SERIES
        for r, c in _readings()
        if c != "released"
    }
    best = {n: max((v, _said(r, c)) for (m, r, c), v in mean.items() if m == n) for n in PAPER_SERIES}
    works = [n for n in PAPER_SERIES if best[n][0] >= DETECTS]
    kind = "holds" if len(works) == 3 else "holds in part" if works else "does not hold"
    return Claim(
        "The score finds the bad samples of the series",
        "figures and Table 1",
        "AUROC for the farthest fifth: "
        + "; ".join(f"{n}, {_said(r, c)} {v:.2f}" for (n, r, c), v in mean.items()),
        f"{kind}: AUROC "
        + ", ".join(f"{v:.2f} on {n}" for n, (v, _) in best.items())
        + " in the best reading; "
        + ", ".join(f"{n}: {reading}" for n, (_, reading) in best.items()),
    )
