"""docs/reproduction.md from the results of all experiments: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import matplotlib as mpl

from tools.document import DOCS, read_tables, table, write_page

from .candidates import FOUR
from .claims import Claim
from .common import cores, typeset, versions
from .lab import Job, unique

mpl.use("agg")
VERDICT = "verdict"  # its column in the first table of docs/real-data.md


def write(experiments: Sequence[tuple[ModuleType, list[Job]]], docs: Path, command: str) -> Path:
    """Draw the figures and write the page into `docs`; its path."""
    pictures = docs / "images" / "reproduction"
    pictures.mkdir(parents=True, exist_ok=True)
    claims = [claim for module, jobs in experiments for claim in module.claims(jobs)]
    theirs = [c for c in claims if not c.claim.startswith("Ours")]
    ours = [c for c in claims if c.claim.startswith("Ours")]
    every = unique(job for _, jobs in experiments for job in jobs)
    seconds = sum(job.found()["seconds"] for job in every)
    parts = [
        "# The paper, reproduced",
        "The experiments of *Quantifying Epistemic Uncertainty in Diffusion Models* (FLARE), each beside "
        "what the paper prints, in every reading that it allows and in some readings of our own. "
        f"{count(theirs)} What was measured for each claim stands below the summary, and the tables after "
        "that. [The paper, line by line](paper.md) lists the formulas and where they contradict each other.",
        "## In short",
        table(["the paper says", "here"], [[c.claim, c.verdict] for c in theirs]),
        "## What was measured",
        table(["claim", "paper", "measured"], [[c.claim, c.paper, c.ours] for c in theirs]),
        "### Claims of our own",
        table(["claim", "measured", "verdict"], [[c.claim, c.ours, c.verdict] for c in ours]),
        "### Which score to use",
        "The claims above are about the paper's score. Which score finds bad samples, on real data too, is "
        "the question of [Real data](real-data.md). Its first table:",
        *advice((DOCS / "real-data.md").read_text(encoding="utf-8")),
    ]
    for module, jobs in experiments:
        parts += [f"## {module.TITLE}", *module.section(jobs, pictures)]
    parts.append(
        f"Written by `{command}`: {len(every)} jobs, {seconds / 60:.0f} minutes of one thread on {cores()}; "
        f"{versions()}"
    )
    path = docs / "reproduction.md"
    write_page(path, typeset("\n\n".join(parts)) + "\n")
    return path


def advice(real: str) -> list[str]:
    """The scores and the verdict on the data sets of docs/real-data.md, and where one of them is ahead."""
    rows = read_tables(real)[0]
    if VERDICT not in rows[0]:
        return ["It is not measured yet."]
    ahead = {
        name: [row["data set"] for row in rows if _first(row[name]) > _first(row[VERDICT])] for name in FOUR
    }
    said = "; ".join(f"`{name}` on {', '.join(sets)}" for name, sets in ahead.items() if sets)
    return [
        table([*rows[0]], [[*row.values()] for row in rows]),
        "AUROC for bad samples with 95% intervals. "
        + (f"A single score is ahead of the verdict: {said}." if said else "No single score is ahead of it."),
    ]


def _first(cell: str) -> float:
    """The figure before its interval; 0 for a dash."""
    return float(cell.partition(" ")[0].replace("–", "0"))


def count(claims: Sequence[Claim]) -> str:
    """How many claims hold, in a sentence."""
    kinds = [claim.kind for claim in claims]
    said = (
        f"Of {len(claims)} claims {kinds.count('holds')} hold, at least in one printed reading, "
        f"{kinds.count('holds with a correction')} hold with a correction, {kinds.count('holds in part')} "
        f"hold in part, and {kinds.count('does not hold')} do not"
    )
    unknown = kinds.count("")
    return f"{said}; {unknown} cannot be judged." if unknown else f"{said}."
