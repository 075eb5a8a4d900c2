"""Real data, end to end: run the jobs that are not done, then write docs/real-data.md.

`python -m experiments.real` takes an hour and a half on two cores with the shipped weights; a run that was
stopped resumes. `--quick` runs a small version in minutes and writes to runs/quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from tools.document import write_page

from . import lab, realbench, unseen
from .common import cores, job_parser, output_directory, versions
from .lab import Job
from .real_page import columns, cost, judges, results, setting, study, summary, unseen_section
from .realbench import STUDIES

mpl.use("agg")


def write(jobs: Sequence[Job], docs: Path, command: str) -> Path:
    """Draw the sheets and write the page; its path."""
    pictures = docs / "images" / "real"
    pictures.mkdir(parents=True, exist_ok=True)
    found = results(jobs)
    seconds = sum(job.found()["seconds"] for job in jobs)
    parts = [
        "# Real data",
        *setting(),
        *summary(found),
        *judges(),
        *columns(),
        *(part for name in STUDIES for part in study(name, found[name], pictures)),
        *unseen_section(jobs),
        *cost(jobs, found),
        f"Written by `{command}`: {len(jobs)} jobs, {seconds / 60:.0f} minutes of one thread on {cores()}, "
        f"training of what is not shipped included; {versions()}",
    ]
    path = docs / "real-data.md"
    write_page(path, "\n\n".join(parts) + "\n")
    return path


def all_jobs(quick: bool) -> list[Job]:
    """The jobs of the studies, and those of what a model never saw."""
    return lab.unique(realbench.jobs(quick) + unseen.jobs(quick))


def main() -> None:
    """Run and write."""
    given = job_parser(__doc__).parse_args()
    jobs = all_jobs(given.quick)
    lab.run(jobs, given.workers)
    command = "make real-quick" if given.quick else "make real"
    print(write(jobs, output_directory(given.quick), command))


if __name__ == "__main__":
    main()
