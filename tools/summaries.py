"""The summaries at the top of pages: `python -m tools.summaries` writes them.

Every figure of a summary is read from a table of the evidence, so that they cannot disagree; a test compares
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from .document import DOCS, ROOT, fill, read_tables, section, table, write_page

COSTS, RELIABILITY = (DOCS / "evidence" / name for name in ("performance.md", "reliability.md"))
CHOOSE, REAL = DOCS / "choose.md", DOCS / "evidence" / "real-data.md"
README = ROOT / "README.md"
SCORES = ("neighbors", "activations", "epistemic_distance")  # of the verdict
# names of rows and columns in the evidence on real data
SET, MEAN, TIME = "data set", "**mean**", "time / plain sampling"
KEPT = ("digits-early", "**keeps both**")
Row = dict[str, str]


def summarize_reliability(page: str) -> str:
    """The failures that were tested, and their outcomes."""
    kills, faults = _tables(page, "chaos")
    inputs = [row for rows in _tables(page, "fuzz") for row in rows]
    halves = _where(_tables(page, "precision")[0], derivatives="secant, by a float64 copy")
    spearman = [float(row["Spearman, expected_residual"]) for row in halves]
    equal = all(row["equal to the last bit"] == "yes" for row in kills)
    rows = {
        "A command is killed | [What was tried](#what-was-tried)": "Run it again to resume. Tested with "
        f"{_sum(kills, 'kills')} kills at random moments of {len(kills)} commands. "
        f"{_sum(kills, 'ends compared')} results compared: "
        + ("all equal to the last bit" if equal else "**not all equal**"),
        "A disk is full, bytes flip, two commands write one file | [What was tried](#what-was-tried)": "An "
        f"error or a warning names the file. {len(faults)} faults tested",
        "A file is malformed or hostile | [Fuzzing](#fuzzing)": "It is rejected with a reason before use. "
        f"{_sum(inputs, 'inputs'):,} inputs tested: none ran code, wrote elsewhere or exhausted the memory",
        "A sample becomes NaN | [NaN and infinity](#nan-and-infinity)": "Only this sample is lost. A warning "
        "names it, and it is never kept",
        "The network is in half precision | [Half precision](#half-precision)": "It samples in its native "
        "precision, and FLARE differentiates a copy in higher precision. Rank correlation with scores in "
        f"float32: {min(spearman):.2f} to {max(spearman):.2f}",
        "Memory is short | [Memory](#memory)": "A batch uses up to half of the free memory, and is halved if "
        "it does not fit",
    }
    return _table(("what goes wrong", "what happens", "more"), rows)


def summarize_choice(_: str) -> str:
    """The evidence for the recommendations, from its pages."""
    page = REAL.read_text(encoding="utf-8")
    scores = _scores(page)
    ranks = _tables(COSTS.read_text(encoding="utf-8"), "directions")[0]

    def mean(name: str) -> str:
        return _cell(scores, name, **{SET: MEAN})

    def cost(network: str) -> str:
        return _cell(_below(page, "Cost"), network, **{TIME: "verdict: `Scorer.score`"})

    def gain(name: str) -> str:
        found = re.search(rf"^`{name}` .*; the mean is (.*)\.$", page, flags=re.MULTILINE)
        return found[1] if found else "–"

    def level(name: str, score: str) -> str:
        return _cell(_below(page, "Options"), score, **{"mean AUROC": name})

    def kept(name: str) -> str:
        found = [_cell(_below(page, "Filters"), name, **{"bad, %": row}) for row in KEPT]
        return " and ".join(found)

    trace, expected = ("trace, Spearman", "expected_residual, Spearman")
    rows = {
        "Which score? | [Real data](real-data.md)": "AUROC, mean over all data sets: verdict "
        f"{mean('verdict')}, " + ", ".join(f"{name} {mean(name)}" for name in SCORES),
        "Is a posterior worth it? | [Real data](real-data.md#does-the-posterior-earn-its-place)": "Mean "
        f"change of the verdict's AUROC by epistemic_distance: {gain('epistemic_distance')}; by influence, "
        f"which is not part of it: {gain('influence')}",
        "What does it cost? | [Real data](evidence/real-data.md#cost)": "Time that scoring adds to "
        f"sampling in 50 steps, as a fraction: {cost('digits-early')} on digits, {cost('mnist')} on MNIST",
        "How many noise draws? | [Real data](evidence/real-data.md#options)": "AUROC of activations and "
        "epistemic_distance: with 2 draws per level "
        + " and ".join(level("all levels, 2 noises each", name) for name in SCORES[1:])
        + ", with 8 draws "
        + " and ".join(level("all levels, 8 noises each", name) for name in SCORES[1:]),
        "How many directions? | [Costs](evidence/performance.md#how-many-directions)": "Rank correlation "
        "with all of Σ, for trace and expected_residual: "
        + ", ".join(
            f"{count} directions {_first(row[trace])} and {_first(row[expected])}"
            for count in ("4", "16", "64")
            for row in [_find(ranks, scores=f"{count} random directions")]
        ),
        "Which filter? | [Real data](real-data.md#filters)": "% bad in digits-early after keeping half, and "
        f"data sets that keep their mode shares and distance to real data: random {kept('random')}, "
        f"best half {kept('verdict, by rank')}, best half of every region {kept('verdict, by region')}, "
        f"p > 0.05 {kept('p > 0.05, the rest by chance')}",
    }
    return _table(("question", "measured", "where"), rows)


def place_scores(_: str) -> str:
    """How well the scores find bad samples, and what the verdict costs, for the README."""
    page = REAL.read_text(encoding="utf-8")
    found = _scores(page)
    columns = {
        "digits": "digits", "early digits": "digits-early", "MNIST": "mnist", "shapes": "shapes",
        "air": "air", "power": "power", "tumors": "tumors", "arcs": "arcs-early", "all sets": MEAN,
    }  # fmt: skip
    names = ("verdict", *SCORES)
    rows = [
        [name, *(_first(_cell(found, name, **{SET: column})) for column in columns.values())]
        for name in names
    ]
    means = {name: _cell(found, name, **{SET: MEAN}) for name in names}
    best = max(means, key=lambda name: 0.0 if means[name] == "–" else float(means[name]))
    said = f"Of these, `{best}` has the highest mean. " if means[best] != "–" else ""
    cost = _cell(_below(page, "Cost"), "mnist", **{TIME: "verdict: `Scorer.score`"})
    if cost != "–":
        said += f"Scoring adds {float(cost):.0%} to the sampling time of a small UNet."
    return f"{table(['AUROC', *columns], rows)}\n\n{said}".strip()


#: the page of each summary, and the function that writes it
SUMMARIES: dict[Path, Callable[[str], str]] = {
    RELIABILITY: summarize_reliability,
    CHOOSE: summarize_choice,
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
    """The table of scores of the evidence on real data; nothing if it is not measured yet."""
    return _below(page, "Scores")


def _below(page: str, heading: str) -> list[Row]:
    """The first table of a section; nothing if it is not measured yet."""
    return next(iter(read_tables(page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])), [])


def _cell(rows: list[Row], column: str, **wanted: str) -> str:
    """A cell of the row with these cells; a dash if it is not measured yet."""
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            return row.get(column, "–") or "–"
    return "–"


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
