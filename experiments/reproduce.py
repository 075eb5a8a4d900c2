"""The paper, end to end: run what is not done yet, then write docs/reproduction.md and docs/evidence.

`python -m experiments.reproduce` takes hours on two cores; a run that was stopped resumes.
`--quick` runs a small version in minutes and writes to runs/quick. `--only NAME` runs one experiment, prints
its tables and names its file. `--write` runs nothing and writes from the results that are there.
"""

from __future__ import annotations

from . import (
    archive,
    authors,
    budget,
    cross_term,
    data_size,
    every_method,
    evidence,
    four_way,
    gallery,
    lab,
    lattice,
    missing_mode,
    page,
    preconditioner,
    recursion,
    table1,
    theorem1,
)
from .common import job_parser, output_directory

EXPERIMENTS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        table1, gallery, recursion, budget, four_way, cross_term, theorem1, data_size, missing_mode, lattice,
        every_method, authors, preconditioner,
    )
}  # fmt: skip


def main() -> None:
    """Run and write."""
    parser = job_parser(__doc__)
    parser.add_argument("--only", choices=EXPERIMENTS, action="append", help="run one experiment, print it")
    parser.add_argument("--write", action="store_true", help="run nothing")
    given = parser.parse_args()
    docs = output_directory(given.quick)
    if not given.quick:
        archive.restore()
    planned = {name: EXPERIMENTS[name].jobs(given.quick) for name in given.only or EXPERIMENTS}
    if not given.write:
        lab.run(lab.unique(job for jobs in planned.values() for job in jobs), given.workers)
    for name, jobs in planned.items():
        if is_ready(name, jobs):
            path = evidence.write(name, EXPERIMENTS[name], jobs, docs, given.quick)
            print(path.read_text(encoding="utf-8") if given.only else path)
            print(f"written to {path}" if given.only else "", end="\n" if given.only else "")
    if not given.only:
        print(page.write(planned.get("table1", []), docs, given.quick))


def is_ready(name: str, jobs: list[lab.Job]) -> bool:
    """Whether an experiment can be written: it is done, or has what its tables need."""
    if name == "table1":
        found = table1.results(jobs)
        return len(found) > 1 and all(len(runs.found) > 1 for runs in found.values())
    if name == "authors":
        return any(job.done for job in jobs if job.run is authors.authors_job)
    return all(job.done for job in jobs)


if __name__ == "__main__":
    main()
