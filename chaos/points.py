"""Fault injection: a process sends itself a signal at a named point of its work.

A point is a call of a function, by name and count: "the third call of flare.results.result.Result.save". The
forked process replaces the function before its work starts, so the library needs no hooks.
"""

from __future__ import annotations

import os
import pkgutil
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """A moment in a command, and the signal that it brings.

    Attributes:
        function: full name, such as "flare.storage.checkpoint.save"; its caller must look it up at each call.
        call: which call, counted from 1; the signal comes before the function does anything.
        rank: which process of the command.
        signal: SIGKILL ends the process, SIGSTOP holds it there until SIGCONT.
    """

    function: str
    call: int = 1
    rank: int = 0
    signal: signal.Signals = signal.SIGKILL

    def install(self) -> None:
        """Replace the function in this process."""
        owner, _, name = self.function.rpartition(".")
        place: Any = pkgutil.resolve_name(owner)
        original, calls = getattr(place, name), 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call:
                os.kill(os.getpid(), self.signal)
            return original(*args, **kwargs)

        setattr(place, name, counted)
