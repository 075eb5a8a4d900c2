"""Real data, end to end: run the jobs that are not done, then write docs/real-data.md.

`python -m experiments.real` takes about two hours on two cores with the shipped weights; a run that was
stopped resumes. `--quick` runs a small version in minutes and writes to runs/quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from tools.document import write_page

from . import archive, choice, costs, detection, lab, real_page, real_parts, unseen
from .common import cores, job_parser, output_directory, versions
from .lab import Job
from .subjects import STUDIES, WHAT

mpl.use("agg")


def write(jobs: Sequence[Job], docs: Path, quick: bool) -> Path:
    """Draw the sheets and write the page from the jobs that are done; its path."""
    pictures = docs / "images" / "real"
    pictures.mkdir(parents=True, exist_ok=True)
    done = [job for job in jobs if job.done]
    seconds = sum(job.found()["seconds"] for job in done)
    measured = choice.complete(quick)
    parts = [
        "# Real data: which score finds the bad samples",
        *real_page.summary(quick, done),
        *real_page.targets(quick, done),
        "## The models",
        "\n".join(f"- **{study}**: {WHAT[study]}" for study in measured),
        *real_page.reported(quick),
        *real_page.differences(quick),
        *real_page.choosing(quick),
        *real_parts.filters(quick),
        *real_parts.cost(done),
        *real_parts.subsets(quick, done),
        *real_parts.judges(done),
        *real_parts.second_judge(quick),
        *(unseen.section(done) if _ready(unseen.jobs(quick)) else []),
        *real_parts.pictures(quick, pictures),
        "## What is not here",
        "Another set of real images: the packages named after one (EMNIST, MedMNIST, "
        "QuickDraw) hold a few kilobytes of code that downloads the data, and nothing here downloads at run "
        "time.",
        *([] if len(done) == len(jobs) else [_missing(jobs, measured)]),
        f"Written by `make real{'-quick' if quick else ''}`: {len(done)} jobs, {seconds / 60:.0f} minutes "
        f"of a busy machine with {cores()}, training of what is not shipped included; {versions()}",
    ]
    path = docs / "real-data.md"
    write_page(path, "\n\n".join(parts) + "\n")
    return path


def _ready(jobs: Sequence[Job]) -> bool:
    return all(job.done for job in jobs)


def _missing(jobs: Sequence[Job], measured: Sequence[str]) -> str:
    """What a page of a stopped run lacks."""
    left = [study for study in STUDIES if study not in measured]
    return (
        f"**This run is not complete**: {sum(not job.done for job in jobs)} of {len(jobs)} jobs are left"
        + (f", and all figures of {', '.join(left)}" if left else "")
        + ". `make real` resumes it."
    )


def all_jobs(quick: bool) -> list[Job]:
    """The jobs of the study of choice, of costs, and of what a model never saw."""
    return lab.unique(detection.jobs(quick) + costs.jobs(quick) + unseen.jobs(quick))


def main() -> None:
    """Run and write."""
    parser = job_parser(__doc__)
    parser.add_argument("--write-only", action="store_true", help="run nothing; write from what is done")
    given = parser.parse_args()
    if not given.quick:
        archive.restore()
    jobs = all_jobs(given.quick)
    if not given.write_only:
        lab.run(jobs, given.workers)
    print(write(jobs, output_directory(given.quick), given.quick))


if __name__ == "__main__":
    main()
