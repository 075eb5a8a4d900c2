"""The summaries at the top of pages: `python -m tools.summaries` writes them.

Every figure of a summary is read from a table of the evidence, so that they cannot disagree; a test compares
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from .document import DOCS, ROOT, fill, read_tables, section, table, write_page

PERFORMANCE, RELIABILITY = DOCS / "performance.md", DOCS / "reliability.md"
CHOOSE, REAL = DOCS / "choose.md", DOCS / "real-data.md"
CLUSTERS, README = DOCS / "clusters.md", ROOT / "README.md"
ESTIMATE = "### On GPUs, estimated"  # the heading in the benchmark of a large network
IMAGES = ("digits", "digits-early", "mnist")  # the columns of images on the page of real data
FITS = ("laplace-torch", "ours, all rows", 'ours, probes="auto"')
JOBS = ("FLARE, 16 directions", "the Jacobian route", "BayesDiff, 10 draws")
FASTER = "times faster than laplace-torch"
Row = dict[str, str]


def summarize_performance(page: str) -> str:
    """What fits, samples and scores cost, and which targets are missed."""
    scoring, peers = _tables(page, "scoring")[0], _tables(page, "peers")[0]
    jobs, ranks = _tables(page, "job")
    calls = [float(row["calls per direction"]) for row in _where(scoring, what="4 by secants")]
    theirs, ours, probes = (_find(peers, parameters="subnetwork", fit=fit) for fit in FITS)
    flare, jacobians, bayesdiff = (_find(jobs, what=what) for what in JOBS)
    rank = _find(ranks, scores="16 random directions")
    missed, met = page.count("**missed**"), len(re.findall(r"[:,] met\b", page))
    rows = {
        "What does a score cost? | [Scoring](#scoring)": f"{min(calls):.1f} to {max(calls):.1f} network "
        f"calls per direction and step, with 4 directions on {len(calls)} networks and batch sizes",
        "What does a fit cost compared with laplace-torch? | [Fits](#the-fit-beside-laplace-torch)": "The "
        f"same curvature {_first(ours[FASTER])} times faster in {ours['peak memory']} instead of "
        f"{theirs['peak memory']}; {_first(probes[FASTER])} times faster with random probes, the default",
        "And the whole job? | [The whole job](#the-whole-job)": f"{flare['in all']} CPU seconds for a "
        "posterior and 500 scored samples; the direct route through Jacobians takes "
        f"{jacobians['times FLARE']} times as long, BayesDiff {bayesdiff['times FLARE']} times",
        "Do 16 random directions rank as all of Σ does? | [The whole job](#the-whole-job)": "Spearman "
        f"{_first(rank['expected_residual, Spearman'])} for the default score, "
        f"{_first(rank['trace, Spearman'])} for the trace",
        "Which targets are missed? | all sections": f"{missed} of our own targets are missed and {met} "
        "met; each section lists them",
    }
    return _table(("question", "answer", "measured in"), rows)


def summarize_reliability(page: str) -> str:
    """What was broken on purpose, and what came of it."""
    kills, faults = _tables(page, "chaos")
    inputs = [row for rows in _tables(page, "fuzz") for row in rows]
    halves = _where(_tables(page, "precision")[0], derivatives="secant, by a float64 copy")
    spearman = [float(row["Spearman, expected_residual"]) for row in halves]
    equal = all(row["equal to the last bit"] == "yes" for row in kills)
    rows = {
        "A command is killed | [What was tried](#what-was-tried)": "Start it again: it resumes. "
        f"{_sum(kills, 'kills')} kills at random moments of {len(kills)} commands, "
        f"{_sum(kills, 'ends compared')} ends compared: "
        + ("all equal to the last bit" if equal else "**not all equal**"),
        "A disk is full, bytes flip, two commands write one file | [What was tried](#what-was-tried)": "An "
        f"error or a warning that names the file; {len(faults)} faults tried",
        "A file is wrong or hostile | [Fuzzing](#fuzzing)": "It is refused with a reason before it is used; "
        f"{_sum(inputs, 'inputs'):,} inputs tried, none ran code, wrote elsewhere or took the memory",
        "A sample becomes NaN | [NaN and infinity](#nan-and-infinity)": "It is lost alone, named and never "
        "kept; the others are unaffected",
        "The network is in half precision | [Half precision](#half-precision)": "It samples in its own "
        f"precision and is differentiated by a wider copy: rank correlation {min(spearman):.2f} to "
        f"{max(spearman):.2f} with scores in float32",
        "Memory is short | [Memory](#memory)": "Batches are sized to half of the free memory, and halved if "
        "they do not fit",
    }
    return _table(("what goes wrong", "what happens", "more"), rows)


def summarize_choice(_: str) -> str:
    """The evidence for the recommendations, from its pages."""
    page = REAL.read_text(encoding="utf-8")
    scores, parameters = _scores(page), _below(page, "Which parameters")[0]
    ranks = _tables(PERFORMANCE.read_text(encoding="utf-8"), "job")[1]
    filters = _below(page, "Filters")[0]

    def score(name: str, *columns: str) -> str:
        row = _find(scores, score=f"`{name}`")
        return " / ".join(row[column] for column in columns)

    def mean(kind: str) -> str:
        return _find(parameters, AUROC=kind)["mean"]

    def kept(name: str) -> str:
        row = _find(filters, **{"bad, %": name})
        return f"{row['digits-early']} and {row['keeps both']}"

    trace, expected = ("trace, Spearman", "expected_residual, Spearman")
    rows = {
        "Which score? | [Real data](real-data.md)": "AUROC over all data sets: verdict "
        f"{score('influence + neighbors', 'all')}, neighbors {score('neighbors', 'all')}, influence "
        f"{score('influence', 'all')}, error_profile {score('error_profile', 'all')}",
        "Features of your own? | [Real data](real-data.md)": f"AUROC on {', '.join(IMAGES)}: "
        f"{score('influence + neighbors in features', *IMAGES)} instead of "
        f"{score('influence + neighbors', *IMAGES)}",
        "A conditional model? | [Real data](real-data.md)": f"AUROC on {', '.join(IMAGES[:2])}: "
        f"{score('influence + neighbors + conditional − unconditional', *IMAGES[:2])} instead of "
        f"{score('influence + neighbors', *IMAGES[:2])}",
        "What does it cost? | [Real data](real-data.md#cost)": "Time added to plain sampling in 50 steps, "
        f"which is 1: verdict {score('influence + neighbors', 'cost')}, expected_residual "
        f"{score('expected_residual', 'cost')}",
        "Which parameters? | [Real data](real-data.md#which-parameters)": "AUROC of influence: "
        f"random {mean('random, m = 1,000')}, sketch {mean('sketch')}, largest gradients "
        f"{mean('sensitive')}, last layer {mean('last layer')}",
        "How many of them? | [Real data](real-data.md#which-parameters)": "AUROC of influence: "
        f"{mean('random, m = 100')} with 100, {mean('random, m = 300')} with 300, "
        f"{mean('random, m = 1,000')} with 1,000",
        "How many directions? | [Performance](performance.md#the-whole-job)": "Rank correlation with all of "
        "Σ, trace and expected_residual: "
        + ", ".join(
            f"{count} directions {_first(row[trace])} and {_first(row[expected])}"
            for count in ("4", "16", "64")
            for row in [_find(ranks, scores=f"{count} random directions")]
        ),
        "Which filter? | [Real data](real-data.md#filters)": "% bad of digits-early after keeping half, and "
        f"on how many data sets shares and distance stay: random {kept('random')}, best half "
        f"{kept('verdict, by rank')}, best half of every region {kept('verdict, by region')}, "
        f"p > 0.05 {kept('p > 0.05, the rest by chance')}",
    }
    return _table(("question", "measured", "where"), rows)


def place_scores(_: str) -> str:
    """How well the scores find bad samples, and what the verdict costs, for the README."""
    found = _scores(REAL.read_text(encoding="utf-8"))
    columns = {
        "digits": "digits", "early digits": "digits-early", "MNIST": "mnist", "shapes": "shapes",
        "air": "air", "power": "power", "synthetic": "synthetic sets",
    }  # fmt: skip
    scores = {
        "verdict": "influence + neighbors",
        "influence alone": "influence",
        "neighbors alone": "neighbors",
        "verdict, own features": "influence + neighbors in features",
    }
    rows = [
        [label, *(_find(found, score=f"`{name}`")[column] for column in columns.values())]
        for label, name in scores.items()
    ]
    cost = float(_find(found, score="`influence + neighbors`")["cost"])
    said = f"No score is best everywhere. Scoring adds {cost:.0%} to the sampling time of a small UNet."
    return f"{table(['AUROC', *columns], rows)}\n\n{said}"


def place_estimate(_: str) -> str:
    """What a large model would take on GPUs, from the benchmark of one."""
    large = section(PERFORMANCE.read_text(encoding="utf-8"), "large").partition(ESTIMATE)[2]
    return large.partition("\nMeasured on")[0].replace(
        "the table above", "[this table](performance.md#a-unet-of-stable-diffusions-size)"
    )


#: the page of each summary, and the function that writes it
SUMMARIES: dict[Path, Callable[[str], str]] = {
    PERFORMANCE: summarize_performance,
    RELIABILITY: summarize_reliability,
    CHOOSE: summarize_choice,
    CLUSTERS: place_estimate,
    README: place_scores,
}


def fill_page(path: Path, text: str) -> str:
    """The text of a page with its summary."""
    return fill(text, "summary", SUMMARIES[path](text))


def main() -> None:
    """Write all summaries."""
    for path in SUMMARIES:
        write_page(path, fill_page(path, path.read_text(encoding="utf-8")))


def _table(header: tuple[str, str, str], rows: Mapping[str, str]) -> str:
    """Rows by their first and their last cell."""
    return table(header, [[key.split(" | ")[0], text, key.split(" | ")[1]] for key, text in rows.items()])


def _scores(page: str) -> list[Row]:
    """The table of scores at the top of the page of real data."""
    return read_tables(page.partition("\n## ")[0])[0]


def _below(page: str, heading: str) -> list[list[Row]]:
    """The tables of a section, up to the next heading of its level."""
    return read_tables(page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


def _tables(page: str, name: str) -> list[list[Row]]:
    return read_tables(section(page, name))


def _where(rows: list[Row], **wanted: str) -> list[Row]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        raise ValueError(f"no row of the table has {wanted}; its columns are {list(rows[0])}.")
    return found


def _find(rows: list[Row], **wanted: str) -> Row:
    return _where(rows, **wanted)[0]


def _first(cell: str) -> str:
    return cell.partition(" ")[0]


def _sum(rows: list[Row], column: str) -> int:
    return sum(int(row[column]) for row in rows)


if __name__ == "__main__":
    main()
