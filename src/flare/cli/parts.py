"""Results made in parts: several processes share the parts, and an interrupted command resumes from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..core.progress import warn
from .bars import Bar
from .claims import claim

if TYPE_CHECKING:
    import torch

    from ..core.progress import Progress
    from ..results.result import Result
    from ..storage.resume import Resume

PART = 500  # samples per part


class Job(Protocol):
    """A result of n samples that is made in parts."""

    @property
    def file(self) -> Path:
        """The file to write; the parts are kept beside it."""

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


@dataclass(frozen=True, kw_only=True)
class SamplingJob:
    """What jobs that draw samples share.

    Attributes:
        file: the file to write.
        about: the settings, with the keys of the written file.
        shape: of one sample.
        dtype: of the samples.
        batch_size: samples per network call.
        started: when the job started, for the seconds it took.
    """

    file: Path
    about: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    batch_size: int | Literal["auto"]
    started: float = field(default_factory=time.perf_counter)

    @property
    def part_size(self) -> int:
        """The number of samples per part; it must not depend on the memory, or nothing could be resumed."""
        return PART if self.batch_size == "auto" else self.batch_size

    def make_lost(self, first: int, count: int) -> Result:
        """Make a part of NaN."""
        import torch

        from ..results.result import Result

        return Result(torch.full((count, *self.shape), torch.nan, dtype=self.dtype))

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples with their settings; return the settings and the number of lost samples."""
        about = self.about | {"seconds": round(time.perf_counter() - self.started, 2)}
        about |= {"scores": list(whole.scores)} if whole.scores else {}
        about |= {key: value for key, value in whole.about.items() if key not in about}
        whole.save(self.file, **about)
        lost = int(whole.lost.sum())
        shown = {key: value for key, value in about.items() if key != "problems"}  # the scorer has said them
        return {"samples": str(self.file), **shown, **({"lost": lost} if lost else {})}


def run_in_parts(job: Job, quiet: bool) -> dict[str, Any]:
    """Make the missing parts of a job, join all of them and write the result; return what to report.

    Parts of an earlier attempt with the same identity are reused. A part that loses all of its samples does
    not affect the others; it is an error only if no sample of the job is left. Processes other than the main
    one return nothing.
    """
    from ..core.distributed import is_main, own_items, wait
    from ..storage.resume import Resume

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
    import torch

    from ..core.distributed import broadcast, is_main
    from ..results.result import Result

    starts = _first_samples(job)
    missing = torch.ones(len(starts))
    if is_main():
        missing = torch.tensor([float(parts.load(str(first), Result.load) is None) for first in starts])
    return [
        first for first, is_missing in zip(starts, broadcast(missing).tolist(), strict=True) if is_missing
    ]


def _make_part(job: Job, first: int, progress: Progress) -> Result:
    """Make one part; if all of its samples are lost, warn and return NaN, unless it is the only part."""
    from ..core.nonfinite import AllLostError

    count = min(job.part_size, job.n - first)
    try:
        return job.make(first, count, progress)
    except AllLostError as error:
        if count == job.n:
            raise
        warn(f"{error} They come back as NaN.")
        part = job.make_lost(first, count)
        return replace(part, about={**part.about, "lost": error.where})


def _join_parts(job: Job, parts: Resume) -> Result:
    """Join all parts of a job; raise if one is missing or no sample is left."""
    from ..core.nonfinite import ADVICE
    from ..results.result import Result, join

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
