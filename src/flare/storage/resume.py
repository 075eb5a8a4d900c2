"""Checkpoint directories: a long job that was interrupted resumes from its finished parts."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from . import checkpoint

FORMAT = 1
_SAVING_FRACTION = 0.05  # largest fraction of the time that saving may take
Part = TypeVar("Part")


class Resume:
    """A checkpoint directory; an identical call resumes from it.

    It holds the finished parts of a job by name, each written atomically and with a checksum.

    >>> resume = flare.Resume("parts")
    >>> posterior = flare.posteriors.dense(denoiser, subset, pairs, resume=resume)
    >>> resume.clear()

    Args:
        directory: The directory for checkpoints. You can delete it when the job is done; see `clear`.
        every: Seconds between saves of running sums; longer if saving would take over 5% of the time.
    """

    def __init__(self, directory: str | os.PathLike[str], every: float = 30.0) -> None:
        self.directory, self.every = Path(directory), every
        self._last_save, self._cost = time.monotonic(), 0.0

    @classmethod
    def of(cls, where: Resume | str | os.PathLike[str] | None) -> Resume | None:
        """The checkpoint directory that a caller passes, as an object or a path; None if there is none."""
        return cls(where) if isinstance(where, str | os.PathLike) else where

    @classmethod
    def beside(cls, file: Path, every: float = 30.0) -> Resume:
        """The checkpoint directory of a job that writes `file`: a hidden directory next to it."""
        directory = file.with_name(f".{file.name}.parts")
        if directory.is_symlink():
            raise ValueError(f"{directory} is a link, but checkpoints of {file.name} go there; remove it.")
        return cls(directory, every)

    def for_job(self, *identity: Any) -> Resume:
        """The subdirectory of the job with this identity, so other jobs do not resume from it.

        Args:
            *identity: Everything that the result depends on, hashed by `checkpoint.digest`.
        """
        return Resume(self.directory / checkpoint.digest(FORMAT, identity)[:16], self.every)

    def path(self, name: str) -> Path:
        """Path of a part."""
        return self.directory / f"{name}.safetensors"

    def load(self, name: str, read: Callable[[Path], Part]) -> Part | None:
        """Read a part, or return None if there is none; a damaged part is deleted with a warning."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            return read(path)
        except ValueError as error:
            warnings.warn(f"{error} This part is computed again.", RuntimeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def restore(self, name: str, sums: Mapping[str, Tensor]) -> int:
        """Load saved running sums in place; return the number of their terms, 0 if nothing was saved."""
        part = self.load(name, checkpoint.load)
        if part is None:
            return 0
        for key, value in sums.items():
            value.copy_(part[0][key])
        return int(part[1]["terms"])

    def save_if_due(self, name: str, sums: Mapping[str, Tensor], terms: int) -> None:
        """Save running sums of `terms` terms if the last save was long enough ago."""
        started = time.monotonic()
        if started - self._last_save < max(self.every, self._cost / _SAVING_FRACTION):
            return
        checkpoint.save(self.path(name), sums, {"terms": terms})
        self._last_save = time.monotonic()
        self._cost = self._last_save - started

    def clear(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.directory, ignore_errors=True)
