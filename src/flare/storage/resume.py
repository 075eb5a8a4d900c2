"""The finished parts of a long job on disk, so that one which was killed goes on where it was."""

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
_SAVING_FRACTION = 0.05  # of the time at most goes into saving
Part = TypeVar("Part")


class Resume:
    """Parts of a job by name in a directory, each written whole, with a checksum, or not at all.

    >>> resume = flare.Resume("runs/parts")                                            # doctest: +SKIP
    >>> posterior = flare.posteriors.dense(denoiser, subset, pairs, resume=resume)     # doctest: +SKIP

    Args:
        directory: where they are kept; it can be deleted when the job is done, see `clear`.
        every: seconds between two saves of a part that grows; more if saving takes over 5% of the time.
    """

    def __init__(self, directory: str | os.PathLike[str], every: float = 30.0) -> None:
        self.directory, self.every = Path(directory), every
        self._saved, self._cost = time.monotonic(), 0.0

    @classmethod
    def beside(cls, file: Path, every: float = 30.0) -> Resume:
        """Those of the job that ends with writing `file`."""
        directory = file.with_name(f".{file.name}.parts")
        if directory.is_symlink():
            raise ValueError(f"{directory} is a link, and parts are written beside {file.name}; remove it.")
        return cls(directory, every)

    def of(self, *identity: Any) -> Resume:
        """The parts of the one job with this identity (see `checkpoint.digest`); others are not seen."""
        return Resume(self.directory / checkpoint.digest(FORMAT, identity)[:16], self.every)

    def path(self, name: str) -> Path:
        """Where a part is kept."""
        return self.directory / f"{name}.safetensors"

    def load(self, name: str, read: Callable[[Path], Part]) -> Part | None:
        """A part, if it is there; a damaged one is dropped, with a warning, to be made again."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            return read(path)
        except ValueError as error:
            warnings.warn(f"{error} This part is made again.", RuntimeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def restore(self, name: str, sums: Mapping[str, Tensor]) -> int:
        """Fill running sums with those kept; how many terms are in them."""
        part = self.load(name, checkpoint.load)
        if part is None:
            return 0
        for key, value in sums.items():
            value.copy_(part[0][key])
        return int(part[1]["terms"])

    def offer(self, name: str, sums: Mapping[str, Tensor], terms: int) -> None:
        """Keep running sums of so many terms, if it is time to."""
        started = time.monotonic()
        if started - self._saved < max(self.every, self._cost / _SAVING_FRACTION):
            return
        checkpoint.save(self.path(name), sums, {"terms": terms})
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def clear(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.directory, ignore_errors=True)
