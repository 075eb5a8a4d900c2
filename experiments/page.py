"""docs/reproduction.md from the results of all experiments: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import matplotlib as mpl

from tools.document import table, write_page

from .common import cores, versions
from .lab import Job, unique

mpl.use("agg")


def write(experiments: Sequence[tuple[ModuleType, list[Job]]], docs: Path, command: str) -> Path:
    """Draw the figures and write the page into `docs`; its path."""
    pictures = docs / "images" / "reproduction"
    pictures.mkdir(parents=True, exist_ok=True)
    claims = [claim for module, jobs in experiments for claim in module.claims(jobs)]
    claims.sort(key=lambda c: c.claim.startswith("Ours"))  # the paper's first
    rows = [[c.claim, c.paper, c.ours, c.verdict] for c in claims]
    every = unique(job for _, jobs in experiments for job in jobs)
    seconds = sum(job.found()["seconds"] for job in every)
    parts = [
        "# The paper, reproduced",
        "The experiments of *Quantifying Epistemic Uncertainty in Diffusion Models* (FLARE), each beside "
        "what the paper prints, with corrections where its formulas need them, and some that it does not "
        "have. Samples, seeds and spreads are said with each table.",
        "## The claims",
        table(["claim", "paper", "measured", "verdict"], rows),
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
