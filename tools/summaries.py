"""What the pages of evidence say first: `python -m tools.summaries` reads their tables and writes the summaries.

Every figure of a summary is read from a table below it, so that the two cannot disagree; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from .document import DOCS, fill, read_tables, section, table, write_page

PERFORMANCE, RELIABILITY = DOCS / "performance.md", DOCS / "reliability.md"
Row = dict[str, str]


def summarize_performance(page: str) -> str:
    """What fits, samples and scores cost, and which targets are missed."""
    (scoring,) = read_tables(section(page, "scoring"))
    (fits,) = read_tables(section(page, "peers"))
    jobs, ranks = read_tables(section(page, "job"))
    secants = _where(scoring, what="4 by secants")
    calls = [float(row["calls per direction"]) for row in secants]
    flare, slow, rival = (_one(jobs, what=what) for what in _starts(jobs, "FLARE", "the Jacobian", "BayesDiff"))
    all_rows, probes = (_one(fits, parameters="subnetwork", fit=fit) for fit in OUR_FITS)
    rank = _one(ranks, scores="16 random directions")
    rows = [
        ["What does a score cost?", f"{min(calls):.1f} to {max(calls):.1f} network calls per direction and step, with "
         f"4 directions on {len(calls)} networks and batch sizes", "[Scoring](#scoring)"],
        ["What does a fit cost beside laplace-torch?", f"The same curvature {_first(all_rows)} times faster in "
         f"{all_rows['peak memory']} instead of {_laplace(fits)['peak memory']}; {_first(probes)} times faster with "
         "random probes, the default", "[Fits](#the-fit-beside-laplace-torch)"],
        ["And the whole job?", f"{flare['in all']} CPU seconds for a posterior and 500 scored samples; the direct route "
         f"through Jacobians takes {slow['times FLARE']} times as long, BayesDiff {rival['times FLARE']} times",
         "[The whole job](#the-whole-job)"],
        ["Do 16 random directions rank as all of Σ does?", f"Spearman {_first(rank, 'expected_residual, Spearman')} for "
         f"the default score, {_first(rank, 'trace, Spearman')} for the trace", "[The whole job](#the-whole-job)"],
        ["Which targets are missed?", f"{page.count('**missed**')} of our own targets are missed and {_met(page)} met; "
         "each section lists them", "all sections"],
    ]  # fmt: skip
    return table(["question", "answer", "measured in"], rows)


def summarize_reliability(page: str) -> str:
    """What was broken on purpose, and what came of it."""
    kills, faults = read_tables(section(page, "chaos"))
    inputs = [row for rows in read_tables(section(page, "fuzz")) for row in rows]
    (halves,) = read_tables(section(page, "precision"))
    copies = _where(halves, derivatives="secant, by a float64 copy")
    spearman = [float(row["Spearman, expected_residual"]) for row in copies]
    equal = all(row["equal to the last bit"] == "yes" for row in kills)
    rows = [
        ["A command is killed", f"Start it again: it resumes. {_sum(kills, 'kills')} kills at random moments of "
         f"{len(kills)} commands, {_sum(kills, 'ends compared')} ends compared: "
         + ("all equal to the last bit" if equal else "**not all equal**"), "[What was tried](#what-was-tried)"],
        ["A disk is full, bytes flip, two commands write one file",
         f"An error or a warning that names the file; {len(faults)} faults tried", "[What was tried](#what-was-tried)"],
        ["A file is wrong or hostile", f"It is refused with a reason before it is used; {_sum(inputs, 'inputs'):,} inputs "
         "tried, none ran code, wrote elsewhere or took the memory", "[Fuzzing](#fuzzing)"],
        ["A sample becomes NaN", "It is lost alone, named and never kept; the others are unaffected",
         "[NaN and infinity](#nan-and-infinity)"],
        ["The network is in half precision", "It samples in its own precision and is differentiated by a wider copy: rank "
         f"correlation {min(spearman):.2f} to {max(spearman):.2f} with scores in float32",
         "[Half precision](#half-precision)"],
        ["Memory is short", "Batches are sized to half of the free memory, and halved if they do not fit",
         "[Memory](#memory)"],
    ]  # fmt: skip
    return table(["what goes wrong", "what happens", "more"], rows)


#: the page of each summary, and the function that writes it
SUMMARIES: dict[Path, Callable[[str], str]] = {
    PERFORMANCE: summarize_performance,
    RELIABILITY: summarize_reliability,
}
OUR_FITS = ("ours, all rows", 'ours, probes="auto"')


def fill_page(path: Path, text: str) -> str:
    """The text of a page with its summary."""
    return fill(text, "summary", SUMMARIES[path](text))


def main() -> None:
    """Write all summaries."""
    for path in SUMMARIES:
        write_page(path, fill_page(path, path.read_text(encoding="utf-8")))


def _where(rows: list[Row], **wanted: str) -> list[Row]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        raise ValueError(f"no row of the table has {wanted}; its columns are {list(rows[0])}.")
    return found


def _one(rows: list[Row], **wanted: str) -> Row:
    return _where(rows, **wanted)[0]


def _starts(rows: list[Row], *words: str) -> list[str]:
    return [next(row["what"] for row in rows if row["what"].startswith(word)) for word in words]


def _laplace(fits: list[Row]) -> Row:
    return _one(fits, parameters="subnetwork", fit="laplace-torch")


def _first(row: Row, column: str = "times faster than laplace-torch") -> str:
    return row[column].partition(" ")[0]


def _sum(rows: list[Row], column: str) -> int:
    return sum(int(row[column]) for row in rows)


def _met(page: str) -> int:
    return len(re.findall(r"[:,] met\b", page))


if __name__ == "__main__":
    main()
