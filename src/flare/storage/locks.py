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
from pathlib import Path

from .checkpoint import PARTIAL

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock `path`, which need not exist; if another process holds the lock, raise an error that names it.

    This is a kernel lock on a hidden file next to the path: it ends with the process, even a killed one.
    Partial files that a killed process left for the path are removed.

    >>> with flare.locks.lock("samples.safetensors"):
    ...     result.save("samples.safetensors")
    """
    path = Path(path).resolve()
    lock_file = path.with_name(f".{path.name}.lock")
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, lock_file)
    try:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"
        with suppress(OSError):  # on a full disk the lock works, but cannot name its holder
            os.truncate(handle, 0)
            os.write(handle, holder.encode())
        for partial in (*path.parent.glob(f".{path.name}{PARTIAL}*"), *_find_abandoned(path)):
            partial.unlink(missing_ok=True)
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(handle)


def _find_abandoned(directory: Path) -> Iterator[Path]:
    """Partial files in a directory, except those of files that another process has locked."""
    for partial in directory.glob(f".*{PARTIAL}*") if directory.is_dir() else ():
        name = partial.name.split(PARTIAL)[0]
        if not (directory / f"{name}.lock").exists():
            yield partial


def _acquire(path: Path, lock_file: Path) -> int:
    """Open and lock the lock file; return its descriptor."""
    while True:
        # never follow a link: its target would be overwritten
        handle = os.open(lock_file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 4096).decode(errors="replace") or "another process"
            os.close(handle)
            raise BlockingIOError(
                f"{path} is being written by {holder}. Wait until it is done, stop it, or write elsewhere."
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(handle)
                raise
            warnings.warn(
                f"the file system of {path} has no locks ({error.strerror}); make sure that no other process "
                "writes to it.",
                RuntimeWarning,
                stacklevel=4,
            )
        # the previous holder may have removed the file after we opened it and before we locked it
        if lock_file.exists() and os.path.samestat(lock_file.stat(), os.fstat(handle)):
            return handle
        os.close(handle)
