"""One command in several processes of this machine, without a launcher that would import torch itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

LOST = 75  # exit status of a process that lost contact with the others: run the command again
#: without the current directory on the path, where a flare.py may lie
_PROGRAM = """import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # until torch is imported, which Ctrl-C would break
sys.path.pop(0)
sys.argv[0] = "flare"
from flare.cli import main
main()"""
#: what ends the processes together with this one
_ENDINGS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_PAUSE = 0.05  # seconds between looks at the processes
_GRACE, _PATIENCE = 2.0, 5.0  # seconds for the others to end by themselves, and after they are told to


def is_one_of_several() -> bool:
    """Whether this process was started together with others, by `launch`, torchrun or accelerate."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `flare` with these arguments in several processes, and return the exit status.

    Only the first process writes to the terminal. If another one fails, the first is stopped, and the output
    of the other one is shown.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    running: list[subprocess.Popen[bytes]] = []
    before = {number: signal.signal(number, _leave) for number in _ENDINGS}
    with tempfile.TemporaryFile() as said:
        try:
            for rank in map(str, range(processes)):
                env = {"OMP_NUM_THREADS": threads, **os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
                place = None if rank == "0" else said
                command = [sys.executable, "-c", _PROGRAM, *arguments]
                running.append(subprocess.Popen(command, env=env, stdout=place, stderr=place))
            while not any(states := [process.poll() for process in running]):
                if None not in states:
                    return 0
                time.sleep(_PAUSE)
            _wait(running, _GRACE)
            failed = [process for process in running if process.poll()]
        except KeyboardInterrupt:  # which the processes have received, too
            _wait(running, _PATIENCE)
            return 130
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in running:
                process.terminate()
            _wait(running, _PATIENCE)
            for process in running:
                process.kill()
                process.wait()
        cause = min(failed, key=lambda process: process.returncode == LOST)
        if cause is not running[0]:
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))
        if cause.returncode < 0:
            sys.stderr.write(
                f"error: process {running.index(cause) + 1} of {processes} was ended by "
                f"{signal.Signals(-cause.returncode).name}, for instance for lack of memory. Finished work "
                "is saved: run the same command again to resume.\n"
            )
    return cause.returncode if cause.returncode > 0 else 128 - cause.returncode  # as shells report signals


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _wait(running: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until all processes have ended, but no longer than this."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in running) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
