"""One process at a time may write a file or a directory: a lock that dies with who holds it."""

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

_UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what a file system without locks answers


@contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold `path`, there or not, for this process alone; whoever comes second is told who holds it.

    The lock is the kernel's, on a file beside the path: it ends with the process, however that ends.
    What a killed process had half written for the path is cleared away.
    """
    path = Path(path).resolve()
    beside = path.with_name(f".{path.name}.lock")
    beside.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, beside)
    try:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"
        with suppress(OSError):  # on a full disk a lock has no name, but it holds
            os.truncate(handle, 0)
            os.write(handle, holder.encode())
        for partial in (*path.parent.glob(f".{path.name}{PARTIAL}*"), *_find_abandoned(path)):
            partial.unlink(missing_ok=True)
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _find_abandoned(directory: Path) -> Iterator[Path]:
    """What was half written in a directory, but for files that others hold by a lock of their own."""
    for partial in directory.glob(f".*{PARTIAL}*") if directory.is_dir() else ():
        name = partial.name.split(PARTIAL)[0]
        if not (directory / f"{name}.lock").exists():
            yield partial


def _acquire(path: Path, beside: Path) -> int:
    """The lock file, open and locked."""
    while True:
        # never through a link: what it leads to would be written over
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
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
            if error.errno not in _UNKNOWN:
                os.close(handle)
                raise
            warnings.warn(
                f"the file system of {path} has no locks ({error.strerror}): do not write to it from two "
                "processes at once.",
                RuntimeWarning,
                stacklevel=4,
            )
        # who held it before may have removed the file between our opening and our locking it
        if beside.exists() and os.path.samestat(beside.stat(), os.fstat(handle)):
            return handle
        os.close(handle)
