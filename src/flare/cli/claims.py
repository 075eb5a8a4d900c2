"""Locks on what a command writes, and what it says after Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from ..core.distributed import is_main, wait
from ..network.training import STATE_FILE
from ..storage.locks import lock
from ..storage.resume import Resume


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Lock the file or directory to write; with several processes the main one holds the lock for all.

    After Ctrl-C, the message says whether there is work to resume from.
    """
    with lock(path) if is_main() else nullcontext():
        wait()
        before = _find_saved_work(path)
        try:
            yield
        except KeyboardInterrupt:
            if _find_saved_work(path) - before:
                raise KeyboardInterrupt("The work so far is kept: the same command resumes it.") from None
            raise


@contextmanager
def claim_new(path: Path) -> Iterator[None]:
    """Lock a file that is written at once; after a kill within the block, the same command may replace it."""
    with claim(path):
        unfinished = Resume.beside(path).directory
        unfinished.mkdir(exist_ok=True)
        try:
            yield
        finally:
            with suppress(OSError):  # it is not empty: parts of another command stay
                unfinished.rmdir()


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file; an unfinished job, with parts next to it, may replace it when resumed."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file with --out.")
    if path.exists() and not overwrite and not Resume.beside(path).directory.is_dir():
        raise FileExistsError(f"{path} exists: choose another --out, or replace it with --overwrite.")


def _find_saved_work(path: Path) -> set[tuple[str, int]]:
    """The files on disk to resume from, each with the time of its last change."""
    found = set()
    for file in (*Resume.beside(path).directory.rglob("[!.]*.safetensors"), *path.glob(STATE_FILE)):
        with suppress(FileNotFoundError):  # another process may have just removed it
            found.add((str(file), file.stat().st_mtime_ns))
    return found
