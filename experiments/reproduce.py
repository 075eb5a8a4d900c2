"""The paper, end to end: run what is not done yet, then write docs/reproduction.md.

`python experiments/reproduce.py` takes hours on two cores; stopped, it goes on where it was.
`--quick` does all of it small, in minutes, and writes to runs/quick. `--only NAME` runs one experiment.
"""

from __future__ import annotations

import argparse

import budget
import choice
import cross_term
import data_size
import four_way
import gallery
import lab
import lattice
import missing_mode
import page
import table1
import theorem1

EXPERIMENTS = {
    module.__name__: module
    for module in (
        choice, table1, gallery, budget, four_way, cross_term, theorem1, lattice, data_size, missing_mode
    )
}  # fmt: skip


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", choices=EXPERIMENTS, action="append", help="run one experiment, write nothing"
    )
    parser.add_argument(
        "--workers", type=int, help="processes of one thread each; as many as cores by default"
    )
    given = parser.parse_args()
    chosen = given.only or list(EXPERIMENTS)
    planned = [(EXPERIMENTS[name], EXPERIMENTS[name].jobs(given.quick)) for name in chosen]
    lab.run(list({job.path: job for _, jobs in planned for job in jobs}.values()), given.workers)
    if not given.only:
        docs = lab.ROOT / "runs" / "quick" if given.quick else page.DOCS
        command = "make reproduce-quick" if given.quick else "make reproduce"
        print(page.write(planned, docs, command))


if __name__ == "__main__":
    main()
