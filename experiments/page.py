"""docs/reproduction.md from the results of all experiments: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import matplotlib as mpl

from tools.document import DOCS, read_tables, table, write_page

from .claims import Claim
from .common import cores, versions
from .lab import Job, unique

mpl.use("agg")
# the columns of docs/real-data.md that say what to use
ADVICE = ("when", "score", "digits", "digits-early", "mnist", "synthetic sets", "all")


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
        "what the paper prints, in every reading that it allows, and some that it does not have. "
        f"{_count(theirs)} What was measured for each claim stands below the summary, and the tables after "
        "that. [The paper, line by line](paper.md) lists the formulas and where they contradict each other.",
        "## In short",
        table(["the paper says", "here"], [[c.claim, c.verdict] for c in theirs]),
        "## What was measured",
        table(["claim", "paper", "measured"], [[c.claim, c.paper, c.ours] for c in theirs]),
        "### Claims of our own",
        table(["claim", "measured", "verdict"], [[c.claim, c.ours, c.verdict] for c in ours]),
        "### Which score to use",
        "The claims above are about the paper's score. Which score finds bad samples, on real data too, is "
        "the question of [Real data](real-data.md), whose first table is, in short (AUROC, means over the "
        f"data sets):\n\n{_advice()}",
    ]
    for module, jobs in experiments:
        parts += [f"## {module.TITLE}", *module.section(jobs, pictures)]
    parts.append(
        f"Written by `{command}`: {len(every)} jobs, {seconds / 60:.0f} minutes of one thread on {cores()}; "
        f"{versions()}"
    )
    path = docs / "reproduction.md"
    write_page(path, "\n\n".join(parts) + "\n")
    return path


def _advice() -> str:
    """The recommendations of docs/real-data.md."""
    rows = read_tables((DOCS / "real-data.md").read_text(encoding="utf-8"))[0]
    return table(ADVICE, [[row[name] for name in ADVICE] for row in rows])


def _count(claims: Sequence[Claim]) -> str:
    """How many claims hold, in a sentence."""
    corrected = sum(c.verdict.startswith("holds with a correction") for c in claims)
    fails = sum(not c.verdict.startswith("holds") for c in claims)
    return (
        f"Of {len(claims)} claims {len(claims) - corrected - fails} hold, at least in one printed reading, "
        f"{corrected} hold with a correction, and {fails} do not."
    )
