"""Killing commands, at random moments or at named points.

Started again, they must end with what an undisturbed one ends with.
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
PATIENCE = 600.0  # seconds after which a command is called hanging


@dataclass(frozen=True)
class Job:
    """A command to kill.

    Attributes:
        arguments: of the command line; started again with the same.
        product: what it writes: a file or a directory.
        before: commands whose products it needs.
        processes: how many share it; one of them, at random, is killed.
        program: another than flare.
    """

    arguments: Sequence[object]
    product: str
    before: Sequence[Sequence[object]] = ()
    processes: int = 1
    program: Callable[[], None] = flare.cli.main


@dataclass
class Outcome:
    """What happened to a job.

    Attributes:
        seconds: of the undisturbed command.
        kills: how often it was killed.
        late: how many kills found parts of the work on disk.
        runs: how many times it came to its end, and was compared.
        said: what the other processes said when one was killed.
    """

    seconds: float
    kills: int = 0
    late: int = 0
    runs: int = 0
    said: list[str] = field(default_factory=list)


def survives(job: Job, home: Path, kills: int, dice: random.Random) -> Outcome:
    """Kill a job at random moments, so many times in all, and compare each time that it comes to its end."""
    outcome = Outcome(_undisturbed(job, home))
    while outcome.kills < kills:
        cut = _fresh(home)
        while not _disturbed(job, cut, outcome, kills, dice):
            pass
        outcome.runs += 1
        _compare(job, home)
    return outcome


def survives_at(job: Job, home: Path, points: Sequence[Point]) -> list[str]:
    """Kill a job at each of these points in turn, start it again, and compare; what it said each time."""
    _undisturbed(job, home)
    cut, said = _fresh(home), []
    for point in points:
        command = Command(job.arguments, cut, job.processes, job.program, [point])
        codes = command.codes()
        if codes[point.rank] != -signal.SIGKILL:
            raise AssertionError(f"flare {job.arguments[0]} never came to {point}: {codes}, {command.said}")
        said.append(command.said)
    run(job.arguments, cut, job.processes, program=job.program)
    _compare(job, home)
    return said


def _undisturbed(job: Job, home: Path) -> float:
    """Run what the job needs, and the job itself, in `start` and `whole`; the seconds it takes."""
    start = home / "start"
    start.mkdir(parents=True, exist_ok=True)
    for command in job.before:
        run(command, start)
    shutil.copytree(start, home / "whole")
    return run(job.arguments, home / "whole", job.processes, program=job.program)[1]


def _fresh(home: Path) -> Path:
    """The directory `cut`, as it is before the job."""
    shutil.rmtree(home / "cut", ignore_errors=True)
    return Path(shutil.copytree(home / "start", home / "cut"))


def _compare(job: Job, home: Path) -> None:
    """Raise if the killed job did not end as the undisturbed one."""
    cut, whole = home / "cut", home / "whole"
    if not equal(cut / job.product, whole / job.product):
        raise AssertionError(f"flare {job.arguments[0]}, killed, ends with other numbers.")
    left, expected = ({p.name for p in d.rglob("*")} for d in (cut, whole))
    if left != expected:
        raise AssertionError(f"flare {job.arguments[0]}, killed, leaves {left ^ expected} behind.")


def _disturbed(job: Job, cut: Path, outcome: Outcome, kills: int, dice: random.Random) -> bool:
    """Start the job once and kill it at a random moment; whether it was done before that."""
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
