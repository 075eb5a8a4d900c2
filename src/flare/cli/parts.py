"""Results made in parts: several processes share the parts, and an interrupted command resumes from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from ..core.distributed import broadcast, is_main, own_items, wait
from ..core.nonfinite import ADVICE, AllLostError
from ..core.progress import Progress, warn
from ..results.result import Result, join
from ..storage.resume import Resume
from .bars import Bar
from .claims import claim


class Job(Protocol):
    """A result of n samples that is made in parts."""

    @property
    def file(self) -> Path:
        """The file to write; the parts are kept next to it."""

    @property
    def n(self) -> int:
        """The number of samples."""

    @property
    def part_size(self) -> int:
        """The number of samples per part."""

    @property
    def title(self) -> str:
        """The title of the progress bar."""

    @property
    def items_per_part(self) -> int:
        """How many items a part passes through its progress."""

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Make the part of samples first..first+count−1."""

    def make_lost(self, first: int, count: int) -> Result:
        """Make the same part with all of its samples lost."""

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the joined result; return what the command reports. Only the main process calls it."""


def run_in_parts(job: Job, quiet: bool) -> dict[str, Any]:
    """Make the missing parts of a job, join all of them and write the result; return what to report.

    Parts of an earlier attempt with the same identity are reused. A part that loses all of its samples does
    not affect the others; it is an error only if no sample of the job is left. Processes other than the main
    one return nothing.
    """
    with claim(job.file):
        resume = Resume.beside(job.file)
        parts = resume.for_job(job.identity(), job.part_size)
        todo = own_items(_find_missing(job, parts))
        with Bar(job.title, len(todo) * job.items_per_part, quiet) as progress:
            for first in todo:
                _make_part(job, first, progress).save(parts.path(str(first)))
        wait()
        if not is_main():
            return {}
        facts = job.write(_join_parts(job, parts))
        resume.clear()
        return facts


def _first_samples(job: Job) -> Sequence[int]:
    return range(0, job.n, job.part_size)


def _find_missing(job: Job, parts: Resume) -> list[int]:
    """The first samples of the parts that are still to be made; the main process looks, for all of them."""
    starts = _first_samples(job)
    missing = torch.ones(len(starts))
    if is_main():
        missing = torch.tensor([float(parts.load(str(first), Result.load) is None) for first in starts])
    return [
        first for first, is_missing in zip(starts, broadcast(missing).tolist(), strict=True) if is_missing
    ]


def _make_part(job: Job, first: int, progress: Progress) -> Result:
    """Make one part; if all of its samples are lost, warn and return NaN, unless it is the only part."""
    count = min(job.part_size, job.n - first)
    try:
        return job.make(first, count, progress)
    except AllLostError as error:
        if count == job.n:
            raise
        warn(f"{error} They are returned as NaN.")
        part = job.make_lost(first, count)
        return replace(part, about={**part.about, "lost": error.where})


def _join_parts(job: Job, parts: Resume) -> Result:
    """Join all parts of a job; raise if one is missing or no sample is left."""
    starts = _first_samples(job)
    if missing := [first for first in starts if not parts.path(str(first)).is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(starts)} parts are not in {parts.directory}: {job.file} must be in "
            "a directory that all machines share."
        )
    whole = join([Result.load(parts.path(str(first))) for first in starts])
    lost = whole.about.get("lost", {})
    if sum(map(len, lost.values())) == job.n:
        raise ValueError(f"all {job.n} samples have NaN or infinity, first at {next(iter(lost))}. {ADVICE}")
    return whole
