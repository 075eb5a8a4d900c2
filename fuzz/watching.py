"""An audit of what reading an input does: no writes elsewhere, no programs, no unpickling, no hanging."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT = 20.0  # seconds per input, on a busy machine
_FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")
_FORBIDDEN += ("pickle.find_class", "os.symlink", "os.link", "ctypes.dlopen")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Finding(Exception):  # noqa: N818
    """Something that must not happen."""


class Watch:
    """Audits this process: records forbidden actions while `watching`."""

    def __init__(self, home: Path) -> None:
        self._home = str(home.resolve())
        self._told: list[str] = []
        self.on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _FORBIDDEN:
            self._told.append(f"{event} {arguments[:1]}")
        elif event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & _WRITING
            if writes and not isinstance(path, int):
                self._inside("open", path)
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.chmod", "os.truncate"):
            for path in arguments[: 2 if event == "os.rename" else 1]:
                self._inside(event, path)

    def _inside(self, event: str, path: Any) -> None:
        if isinstance(path, int) or os.fspath(path) == os.devnull:
            return
        place = os.path.realpath(os.fsdecode(path))
        if place != self._home and not place.startswith(self._home + os.sep):
            self._told.append(f"{event} {place}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read an input inside this block; a forbidden action or a timeout raises `Finding`."""
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        self._told, self.on = [], True
        try:
            yield
        finally:
            self.on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if self._told:
            raise Finding(f"reading the file did what no file may do: {self._told[:3]}")


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Finding(f"reading the file took more than {LIMIT:.0f} seconds")


def inventory(*roots: Path) -> dict[str, tuple[int, int]]:
    """Every file below some directories, with its size and when it was written."""
    found = {}
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                stat = path.stat()
                found[str(path)] = (stat.st_size, stat.st_mtime_ns)
    return found
