"""Results of long studies that the repository keeps, so that a study resumes on another machine.

`python -m experiments.archive` (`make keep`) copies what was found and trained below `runs/reproduce` to
`experiments/results`; `make reproduce` and `make real` start from there. Results are named by their
configuration and by what the library measures: others are not found, and are removed by the next call.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import lab
from .files import atomic

RESULTS = Path(__file__).parent / "results"
SMALL, LONG = 100_000, 180.0  # bytes; seconds: a larger result that took less time is made again
LARGE = 4_000_000  # bytes: larger models, such as hypernetworks, are trained again
WEIGHTS = ("model.safetensors", "config.json")  # of a trained model; what resumes its training is left out


def restore() -> int:
    """Copy the kept files that are missing below the studies' directory; returns how many."""
    return _copy(RESULTS, lab.RUNS, (path for path in RESULTS.rglob("*") if path.is_file()))


def keep(jobs: list[lab.Job]) -> int:
    """Keep the results of these jobs, and the trained models; returns how many files are new.

    Args:
        jobs: those of the studies, as they are now; results of others are removed.
    """
    found = [path for job in jobs if job.done and _is_worth_keeping(job) for path in job.files]
    for path in RESULTS.glob("*.*"):
        newest = lab.RUNS / path.name
        if newest not in found or not filecmp.cmp(path, newest, shallow=False):
            path.unlink()
    return _copy(lab.RUNS, RESULTS, [*found, *_trained()])


def _is_worth_keeping(job: lab.Job) -> bool:
    size = sum(path.stat().st_size for path in job.files)
    return size <= SMALL or job.found()["seconds"] >= LONG


def _trained() -> Iterator[Path]:
    """The files of all models whose training is over, but for large ones."""
    for weights in (lab.RUNS / "models").glob("*/model.safetensors"):
        if weights.stat().st_size > LARGE:
            continue
        yield from (weights.with_name(name) for name in WEIGHTS if weights.with_name(name).is_file())


def _copy(source: Path, target: Path, files: Iterator[Path] | list[Path]) -> int:
    count = 0
    for path in files:
        place = target / path.relative_to(source)
        if not place.is_file():
            with atomic(place) as partial:
                shutil.copyfile(path, partial)
            count += 1
    return count


def main() -> None:
    """Keep what `make reproduce` and `make real` have found so far."""
    from . import real, reproduce

    restore()  # what is kept already stays, also where this machine did not run it
    papers = [job for module in reproduce.EXPERIMENTS.values() for job in module.jobs(quick=False)]
    jobs = lab.unique([*papers, *real.all_jobs(quick=False)])
    count = keep(jobs)
    size = sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) / 2**20
    done = sum(job.done for job in jobs)
    print(f"{count} new files, {size:.1f} MB in all; {done} of {len(jobs)} jobs are done")


if __name__ == "__main__":
    main()
