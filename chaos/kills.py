"""Killing commands at random moments: started again, they must end with what an undisturbed one ends with."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commands import Command, equal, run

import flare.cli

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
    start = home / "start"
    for command in job.before:
        run(command, start)
    start.mkdir(parents=True, exist_ok=True)
    whole = home / "whole"
    shutil.copytree(start, whole)
    _, seconds = run(job.arguments, whole, job.processes, program=job.program)
    outcome = Outcome(seconds)
    while outcome.kills < kills:
        cut = home / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        shutil.copytree(start, cut)
        while not _disturbed(job, cut, outcome, kills, dice):
            pass
        outcome.runs += 1
        if not equal(cut / job.product, whole / job.product):
            raise AssertionError(f"flare {job.arguments[0]}, killed, ends with other numbers.")
        left, expected = ({p.name for p in d.rglob("*")} for d in (cut, whole))
        if left != expected:
            raise AssertionError(f"flare {job.arguments[0]}, killed, leaves {left ^ expected} behind.")
    return outcome


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
