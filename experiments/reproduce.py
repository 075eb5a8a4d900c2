"""The paper, end to end: run what is not done yet, then write docs/reproduction.md.

`python -m experiments.reproduce` takes hours on two cores; a run that was stopped resumes.
`--quick` runs a small version in minutes and writes to runs/quick. `--only NAME` runs one experiment.
"""

from __future__ import annotations

from . import (
    archive,
    budget,
    cross_term,
    data_size,
    four_way,
    gallery,
    lab,
    lattice,
    missing_mode,
    page,
    recursion,
    table1,
    theorem1,
)
from .common import job_parser, output_directory

EXPERIMENTS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        table1, recursion, gallery, budget, four_way, cross_term, theorem1, lattice, data_size, missing_mode
    )
}  # fmt: skip


def main() -> None:
    """Run and write."""
    parser = job_parser(__doc__)
    parser.add_argument(
        "--only", choices=EXPERIMENTS, action="append", help="run one experiment, write nothing"
    )
    given = parser.parse_args()
    chosen = given.only or list(EXPERIMENTS)
    if not given.quick:
        archive.restore()
    planned = [(EXPERIMENTS[name], EXPERIMENTS[name].jobs(given.quick)) for name in chosen]
    lab.run(lab.unique(job for _, jobs in planned for job in jobs), given.workers)
    if not given.only:
        command = "make reproduce-quick" if given.quick else "make reproduce"
        print(page.write(planned, output_directory(given.quick), command))


if __name__ == "__main__":
    main()
