"""docs/evidence: one file per experiment with all of its tables and its claims, kept out of the search.

The files are the record of the last run of each experiment. The short page is written from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import matplotlib as mpl

from tools.document import read_tables, table, write_page

from . import lab
from .claims import Claim
from .common import typeset, versions
from .lab import Job

mpl.use("agg")
HEAD = "---\nsearch:\n  exclude: true\n---\n"
CLAIMS = "## Claims"
COLUMNS = ("claim", "paper", "measured", "verdict")


def path_of(name: str, docs: Path) -> Path:
    """The file of an experiment."""
    return docs / "evidence" / f"{name}.md"


def write(name: str, module: ModuleType, jobs: Sequence[Job], docs: Path, quick: bool) -> Path:
    """Draw the figures of an experiment and write its file; a quick run draws no conclusions."""
    pictures = docs / "images" / "reproduction"
    pictures.mkdir(parents=True, exist_ok=True)
    note = "**A quick run**: few samples and short training, to see that it runs. It supports no verdict."
    about = "Evidence for [The paper, reproduced](reproduction.md). Unless stated otherwise, the curvature H "
    parts = [note] if quick else [f"{about}has the weights of the training loss."]
    parts += module.section(jobs, pictures)
    if quick:
        parts = [f"*Quick run.*\n\n{part}" if part.startswith("|") else part for part in parts]
    else:
        claims = [[c.claim, c.paper, c.ours, c.verdict] for c in module.claims(jobs)]
        parts += [CLAIMS, table(COLUMNS, claims)] if claims else []
    done = [job for job in jobs if job.done]
    minutes = sum(job.found()["seconds"] for job in done) / 60
    parts.append(f"{len(done)} jobs, {minutes:.0f} minutes of one thread; {versions(lab.MEASURES)}")
    path = path_of(name, docs)
    write_page(path, layout(module.TITLE, "\n\n".join(parts)))
    return path


def layout(title: str, text: str) -> str:
    r"""The file of a section: its own title, headings one level up, and links from one directory below.

    >>> layout("A", "### B\n\n[c](d.md#e) [f](#g)").removeprefix(HEAD)
    '# A\n\n## B\n\n[c](../d.md#e) [f](#g)\n'
    """
    text = re.sub(r"^#(##+) ", r"\1 ", text, flags=re.MULTILINE)
    text = re.sub(r"\]\((?!https?:|#|\.\./)", "](../", text)
    return f"{HEAD}# {title}\n\n{typeset(text)}\n"


def read_claims(name: str, docs: Path) -> list[Claim]:
    """The claims of an experiment, as its file has them; none if there is no file."""
    path = path_of(name, docs)
    text = path.read_text(encoding="utf-8").partition(CLAIMS)[2] if path.is_file() else ""
    return [Claim(*(row[column] for column in COLUMNS)) for rows in read_tables(text)[:1] for row in rows]
