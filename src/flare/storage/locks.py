"""Locks: one process at a time may write a file or a directory; a lock ends with its process."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from filelock import FileLock, Timeout

from .checkpoint import PARTIAL

PATIENCE = 0.2  # seconds; a lock file that its last holder has just removed is made again at the next try
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks
_WINDOWS = os.name == "nt"


@contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock `path`, which need not exist; if another process holds the lock, raise an error that names it.

    This is a lock of the operating system on a hidden file next to the path: it ends with the process, even a
    killed one. Partial files that a killed process left for the path are removed.

    >>> with flare.locks.lock("samples.safetensors"):
    ...     result.save("samples.safetensors")
    """
    path = Path(path).resolve()
    lock_file = path.with_name(f".{path.name}.lock")
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    held = _acquire(path, lock_file)
    try:
        _write_holder(lock_file)
        for partial in (*path.parent.glob(f".{escape(path.name)}{PARTIAL}*"), *_find_abandoned(path)):
            if not partial.is_dir():  # that of a killed `Scorer.save` may hold the only copy
                partial.unlink(missing_ok=True)
        yield
    finally:
        if not _WINDOWS:  # while it is locked, so that nobody else has just locked it
            lock_file.unlink(missing_ok=True)
        held.release()
        if _WINDOWS:  # only now: Windows removes no file that a process has open
            with suppress(OSError):
                lock_file.unlink(missing_ok=True)


def _find_abandoned(directory: Path) -> Iterator[Path]:
    """Partial files in a directory, except those of files that another process has locked."""
    for partial in directory.glob(f".*{PARTIAL}*") if directory.is_dir() else ():
        name = partial.name.split(PARTIAL)[0]
        if not (directory / f"{name}.lock").exists():
            yield partial


def _acquire(path: Path, lock_file: Path) -> FileLock:
    """Lock the lock file, which must not be a link: its target would be overwritten."""
    holder = _read_holder(lock_file)  # before the attempt, which may truncate the file
    # a marker file instead of a lock would outlive a killed process
    held = FileLock(lock_file, timeout=PATIENCE, fallback_to_soft=False)
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(
            f"{path} is being written by {holder}. Wait until it is done, stop it, or write elsewhere."
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(
            f"the file system of {path} has no locks ({error.strerror}); make sure that no other process "
            "writes to it.",
            RuntimeWarning,
            stacklevel=4,
        )
    return held


def _read_holder(lock_file: Path) -> str:
    """Who holds a lock, as far as its file can be read; on Windows it is locked for readers, too."""
    said = ""
    with suppress(OSError):
        said = lock_file.read_text(encoding="utf-8", errors="replace")
    return said or "another process"


def _write_holder(lock_file: Path) -> None:
    """Name this process in the lock file; the lock works without it, on a full disk or on Windows."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"
    with suppress(OSError):
        handle = os.open(lock_file, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.write(handle, holder.encode())
        finally:
            os.close(handle)
