"""Real data, end to end: run the jobs that are not done, then write docs/real-data.md and its tables.

`python -m experiments.real` takes hours on two cores with the shipped weights; a run that was stopped
resumes. `--quick` runs a small version in minutes and writes to runs/quick. `--write-only` writes the page
from what is done, and `--list` says what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib as mpl

from . import archive, costs, detection, keeping, lab, options, subjects, subset_choice, unseen, verdict
from .common import job_parser, output_directory
from .lab import Job

mpl.use("agg")


def all_jobs(quick: bool) -> list[Job]:
    """All jobs of the study; what the page needs most comes first."""
    jobs: list[Job] = []
    for study in detection.studies_of(quick):
        jobs += subjects.train_jobs(study, quick)
        for run in detection.runs_of(study, quick):
            jobs += [detection.draw(study, *run, quick), verdict.job(study, *run, quick)]
        jobs.append(detection.judge(study, quick))
        if study not in detection.SLOW:
            jobs.append(verdict.noise(study, quick))
        jobs += [*detection.rival_jobs(study, quick), keeping.job(study, quick)]
    more = detection.reliability_jobs(quick) + options.jobs(quick) + subset_choice.jobs(quick)
    more += unseen.jobs(quick) + costs.jobs(quick)
    return lab.unique(jobs + more)


def describe_left(jobs: Sequence[Job]) -> str:
    """The jobs that are left, by kind."""
    left = [job for job in jobs if not job.done]
    kinds = Counter(job.run.__name__ for job in left)
    lines = [f"{len(left)} of {len(jobs)} jobs are left", *(f"{n:4} {kind}" for kind, n in kinds.items())]
    return "\n".join([*lines, *(job.name for job in left)])


def main() -> None:
    """Run and write."""
    parser = job_parser(__doc__)
    parser.add_argument("--write-only", action="store_true", help="run nothing; write from what is done")
    parser.add_argument("--list", action="store_true", help="list the jobs that are left")
    parser.add_argument("--studies", help="run the jobs of these data sets only, as in digits,air")
    given = parser.parse_args()
    if not given.quick:
        archive.restore()
    jobs = all_jobs(given.quick)
    chosen = jobs
    if given.studies:
        chosen = [job for job in jobs if job.config.get("study") in given.studies.split(",")]
    if given.list:
        print(describe_left(chosen))
        return
    if not given.write_only:
        lab.run(chosen, given.workers)
    from .real_page import write

    print(write(jobs, output_directory(given.quick), given.quick))


if __name__ == "__main__":
    main()
