"""Kill commands at random moments or at named points.

Started again, a command must write the same as an undisturbed one.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import flare.cli

from .commands import Command, equal, run
from .points import Point

KEPT = ("**/.*.parts/**/*.safetensors", "**/training.safetensors", "runs/*.json")  # parts of the work
PATIENCE = 600.0  # seconds until a command counts as hanging


@dataclass(frozen=True)
class Job:
    """A command to kill.

    Attributes:
        arguments: of the command line, the same after every kill.
        product: the file or directory that it writes.
        before: commands whose products it needs.
        processes: how many share the work; a random one is killed.
        program: another program than flare.
    """

    arguments: Sequence[object]
    product: str
    before: Sequence[Sequence[object]] = ()
    processes: int = 1
    program: Callable[[], None] = flare.cli.main


@dataclass
class Outcome:
    """The outcome of a job.

    Attributes:
        seconds: of the undisturbed command.
        kills: how often it was killed.
        late: how many kills found parts of the work on disk.
        runs: how many times it finished and was compared.
        said: output of the other processes when one was killed.
    """

    seconds: float
    kills: int = 0
    late: int = 0
    runs: int = 0
    said: list[str] = field(default_factory=list)


def kill_randomly(job: Job, home: Path, kills: int, dice: random.Random) -> Outcome:
    """Kill a job at random moments, `kills` times in all, and compare every time it finishes."""
    outcome = Outcome(_run_undisturbed(job, home))
    while outcome.kills < kills:
        cut = _reset(home)
        while not _disturb(job, cut, outcome, kills, dice):
            pass
        outcome.runs += 1
        _compare(job, home)
    return outcome


def kill_at(job: Job, home: Path, points: Sequence[Point]) -> list[str]:
    """Kill a job at each point in turn, start it again and compare; returns its output each time."""
    _run_undisturbed(job, home)
    cut, said = _reset(home), []
    for point in points:
        command = Command(job.arguments, cut, job.processes, job.program, [point])
        codes = command.codes()
        if codes[point.rank] != -signal.SIGKILL:
            raise AssertionError(f"flare {job.arguments[0]} never came to {point}: {codes}, {command.said}")
        said.append(command.said)
    run(job.arguments, cut, job.processes, program=job.program)
    _compare(job, home)
    return said


def _run_undisturbed(job: Job, home: Path) -> float:
    """Run what the job needs, and the job itself, in `start` and `whole`; returns its seconds."""
    start = home / "start"
    start.mkdir(parents=True, exist_ok=True)
    for command in job.before:
        run(command, start)
    shutil.copytree(start, home / "whole")
    return run(job.arguments, home / "whole", job.processes, program=job.program)[1]


def _reset(home: Path) -> Path:
    """The directory `cut`, reset to its state before the job."""
    shutil.rmtree(home / "cut", ignore_errors=True)
    return Path(shutil.copytree(home / "start", home / "cut"))


def _compare(job: Job, home: Path) -> None:
    """Raise if the killed job left other files or numbers than the undisturbed one."""
    cut, whole = home / "cut", home / "whole"
    if not equal(cut / job.product, whole / job.product):
        raise AssertionError(f"flare {job.arguments[0]}, killed, ends with other numbers.")
    # a killed `Scorer.save` may leave a partial directory, which holds the only copy of its work
    left, expected = ({p.name for p in d.rglob("*") if ".partial-" not in str(p)} for d in (cut, whole))
    if left != expected:
        raise AssertionError(f"flare {job.arguments[0]}, killed, leaves {left ^ expected} behind.")


def _disturb(job: Job, cut: Path, outcome: Outcome, kills: int, dice: random.Random) -> bool:
    """Start the job once and kill it at a random moment; returns whether it finished first."""
    command = Command(job.arguments, cut, job.processes, job.program)
    moment = dice.uniform(0, outcome.seconds) if outcome.kills < kills else PATIENCE
    if command.ends_within(moment):
        if set(command.codes()) != {0}:
            raise AssertionError(f"flare {job.arguments[0]}, started again, fails: {command.said}")
        return True
    if moment == PATIENCE:
        for rank in range(job.processes):
            command.kill(rank)
        raise AssertionError(f"flare {job.arguments[0]} hangs: {command.said}")
    command.kill(dice.randrange(job.processes))
    outcome.kills += 1
    outcome.late += any(any(cut.glob(pattern)) for pattern in KEPT)
    if not command.ends_within(PATIENCE):
        raise AssertionError(f"flare {job.arguments[0]}: the others wait for the one that was killed.")
    if job.processes > 1:
        outcome.said.append(command.said)
    return False
