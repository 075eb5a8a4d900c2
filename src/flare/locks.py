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
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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
    file = _taken(path, beside)
    try:
        file.truncate(0)
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        file.write(f"process {os.getpid()} on {socket.gethostname()} ({command}), ")
        file.write(f"since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        file.flush()
        inside = path.glob(f".*{PARTIAL}*") if path.is_dir() else ()
        for partial in (*path.parent.glob(f".{path.name}{PARTIAL}*"), *inside):
            partial.unlink(missing_ok=True)
        yield
    finally:
        beside.unlink(missing_ok=True)
        file.close()


def _taken(path: Path, beside: Path) -> IO[str]:
    """The lock file, open and locked."""
    while True:
        file = beside.open("a+", encoding="utf-8")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # who held it before may have removed the file between our opening and our locking it
            if beside.exists() and os.path.samestat(beside.stat(), os.fstat(file.fileno())):
                return file
            file.close()
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise BlockingIOError(
                f"{path} is being written by {holder}. Wait until it is done, stop it, or write elsewhere."
            ) from None
        except OSError as error:
            if error.errno not in _UNKNOWN:
                file.close()
                raise
            warnings.warn(
                f"the file system of {path} has no locks ({error.strerror}): do not write to it from two "
                "processes at once.",
                RuntimeWarning,
                stacklevel=4,
            )
            return file
