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


@contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock `path`, which need not exist; if another process holds the lock, raise an error that names it.

    This is a lock of the operating system on a hidden file next to the path: it ends with the process, even a
    killed one. Partial files that a killed process left for the path are removed.

    >>> with lock("samples.safetensors"):
    ...     result.save("samples.safetensors")
    """
    path = Path(path).resolve()
    lock_file = path.with_name(f".{path.name}.lock")
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    held = _acquire(path, lock_file)
    try:
        _write_holder(lock_file)
        for partial in (*path.parent.glob(f".{escape(path.name)}{PARTIAL}*"), *path.glob(f".*{PARTIAL}*")):
            in_use = partial.with_name(f"{partial.name.split(PARTIAL)[0]}.lock")
            # a directory of a killed `Scorer.save` may hold the only copy
            if not partial.is_dir() and (in_use == lock_file or not in_use.exists()):
                partial.unlink(missing_ok=True)
        yield
    finally:
        with suppress(OSError):  # while it is locked: later, another process may hold it (Windows refuses)
            lock_file.unlink(missing_ok=True)
        held.release()


def _acquire(path: Path, lock_file: Path) -> FileLock:
    """Lock the lock file, which must not be a link: its target would be overwritten."""
    holder = ""
    with suppress(OSError):  # the attempt may truncate it; Windows locks it for readers, too
        holder = lock_file.read_text(encoding="utf-8", errors="replace")
    # a marker file instead of a lock would outlive a killed process
    held = FileLock(lock_file, timeout=PATIENCE, fallback_to_soft=False)
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(
            f"{path} is being written by {holder or 'another process'}. Wait until it is done, stop it, or "
            "write elsewhere."
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


def _write_holder(lock_file: Path) -> None:
    """Write the name of this process to the lock file; the lock also works if this fails."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"
    with suppress(OSError):
        handle = os.open(lock_file, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.write(handle, holder.encode())
        finally:
            os.close(handle)
