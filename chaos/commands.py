"""Commands of flare in their own processes, forked from a process that has torch loaded: no start-up time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

import torch

import flare.cli
from flare.storage import checkpoint
from flare.storage.resume import Resume

from .points import Point

FORK = multiprocessing.get_context("fork")


class Command:
    """`flare ARGUMENTS` in a directory, as one process or as several that share the work.

    What the processes print goes to files beside the directory.

    Args:
        arguments: of the command line.
        directory: where it runs.
        processes: how many.
        program: another program than flare, called without arguments.
        points: where its processes send themselves signals.
        context: how processes are started; by default they are forks of this one.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        directory: Path,
        processes: int = 1,
        program: Callable[[], None] = flare.cli.main,
        points: Sequence[Point] = (),
        context: BaseContext = FORK,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._logs = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        env = {"COLUMNS": "400", "NO_COLOR": "1", "FLARE_TIMEOUT": os.environ.get("FLARE_TIMEOUT", "60")}
        self._socket = _reserve_port()
        if processes > 1:
            port = self._socket.getsockname()[1]
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        words = [str(word) for word in arguments]
        self.processes = []
        for rank in range(processes):
            own = [point for point in points if point.rank == rank]
            given = (program, words, directory, env | {"RANK": str(rank)}, self._logs, own)
            self.processes.append(context.Process(target=_run, args=given))  # type: ignore[attr-defined]
        for process in self.processes:
            process.start()

    def wait_until_stopped(self, rank: int = 0) -> int:
        """Wait until a process stops itself at a point with SIGSTOP; its process id."""
        pid = self.processes[rank].pid or 0
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise AssertionError(f"process {rank} ended before it came to the point: {self.said}")
        return pid

    def ends_within(self, seconds: float) -> bool:
        """Whether all processes end by themselves in that time."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return not any(process.is_alive() for process in self.processes)

    def kill(self, rank: int = 0) -> None:
        """SIGKILL: no chance to clean up."""
        process = self.processes[rank]
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()

    def codes(self) -> list[int]:
        """The exit codes, when all have ended."""
        for process in self.processes:
            process.join()
        self._socket.close()
        return [process.exitcode or 0 for process in self.processes]

    @property
    def stdout(self) -> str:
        """What the processes have written to standard output."""
        return self._read("stdout")

    @property
    def stderr(self) -> str:
        """What the processes have written to standard error."""
        return self._read("stderr")

    @property
    def said(self) -> str:
        """Both, in one line."""
        return " ".join((self.stdout + self.stderr).split())

    def _read(self, name: str) -> str:
        path = self._logs / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def run(
    arguments: Sequence[object],
    directory: Path,
    processes: int = 1,
    code: int = 0,
    program: Callable[[], None] = flare.cli.main,
) -> tuple[str, float]:
    """Run a command; returns what it prints and its seconds, and raises if it ends with another exit code."""
    started = time.monotonic()
    command = Command(arguments, directory, processes, program)
    codes = command.codes()
    if set(codes) != {code}:
        raise AssertionError(f"flare {arguments[0]} ended with {codes}, not {code}: {command.said}")
    if "Traceback" in command.said:
        raise AssertionError(f"flare {arguments[0]} shows a traceback: {command.said}")
    return command.said, time.monotonic() - started


def save_often() -> None:
    """The command line, with a checkpoint of a fit after every batch."""
    Resume.beside.__func__.__defaults__ = (0.0,)  # type: ignore[attr-defined]
    flare.cli.main()


def warm_up() -> None:
    """Do a little of everything, so that late imports happen before the first fork."""
    model = flare.bench.load("sines")
    pairs = flare.noising.pairs(model.data, model.schedule, n=10)
    subset = flare.subsets.random(model.denoiser, count=5)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs, 1.0, "calibrated")
    flare.sample(model.denoiser, model.sampler("ddim", 2), posterior, n=2, shape=model.shape, directions=2)


def content(path: Path) -> dict[str, object]:
    """The tensors of a file, or of all files of a directory; raises if a checksum is wrong."""
    if path.is_dir():
        return {f"{file.name}:{k}": v for file in sorted(path.iterdir()) for k, v in content(file).items()}
    if path.suffix == ".safetensors":
        return dict(checkpoint.load(path)[0])
    if path.suffix == ".json":
        return {k: v for k, v in checkpoint.load_json(path).items() if k != "seconds"}
    return {"bytes": path.read_bytes()}


def equal(a: Path, b: Path) -> bool:
    """Whether two files or directories hold the same numbers, bit for bit."""
    x, y = content(a), content(b)
    return x.keys() == y.keys() and all(
        torch.equal(x[k], y[k]) if isinstance(x[k], torch.Tensor) else x[k] == y[k]  # type: ignore[arg-type]
        for k in x
    )


def _reserve_port() -> socket.socket:
    """A socket on a free port for the first process; no other program gets the port while it is open."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))  # not listening: with SO_REUSEADDR the first process can bind it, too
    return reserved


def _run(
    program: Callable[[], None],
    words: list[str],
    directory: Path,
    env: dict[str, str],
    logs: Path,
    points: Sequence[Point],
) -> None:
    os.setsid()
    torch.set_num_threads(1)  # a fork has none of the threads that its parent may have started
    for point in points:
        point.install()
    os.chdir(directory)
    os.environ.update(env)
    for name, handle in (("stdout", 1), ("stderr", 2)):
        file = os.open(logs / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, handle)
        setattr(sys, name, os.fdopen(handle, "w", buffering=1, closefd=False))
    warnings.resetwarnings()  # Python's own filters, whatever the parent process has set
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    sys.argv = ["flare", *words]
    program()
