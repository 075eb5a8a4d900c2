"""`flare` in its own process that starts at once: forked from a server that has torch loaded.

The server knows nothing of the tests, so a command sees what it would see in a terminal.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from types import SimpleNamespace

import pytest

from chaos.commands import Command
from chaos.points import Point

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(  # what commands import late
    [
        "flare.scorer.fit", "flare.cli.models_in", "flare.cli.samples_in", "flare.cli.scored", "flare.report",
        "flare.network.training", "flare.bench.oracles", "torch._dynamo", "torch.distributed.tensor",
    ]
)  # fmt: skip

# Ctrl-C at a named point of the work
interrupt_training = Point("flare.network.training.Training.step", call=9, signal=signal.SIGINT)
interrupt_sampling = Point("flare.Result.save", call=3, signal=signal.SIGINT)
interrupt_fitting = Point("flare.storage.resume.Resume.save_if_due", call=2, signal=signal.SIGINT)


def flare(*arguments, cwd, code=0, stop: Point | None = None):
    """Run a command: its exit code, standard output and standard error, without a traceback.

    Args:
        arguments: Words of the command line.
        cwd: Directory where it runs.
        code: Exit code that it must have; None for any.
        stop: Point where it gets a signal.
    """
    command = Command(arguments, cwd, points=[stop] if stop else [], context=CONTEXT)
    if not command.ends_within(200):
        command.kill()
        raise AssertionError(f"flare {arguments} does not end")
    (found,) = command.codes()
    done = SimpleNamespace(returncode=found, stdout=command.stdout, stderr=command.stderr)
    assert code is None or done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def call_here(monkeypatch, capsys, *arguments):
    """Run a command in this process: its exit code, standard output and standard error."""
    from flare.cli import main

    monkeypatch.setattr(sys, "argv", ["flare", *map(str, arguments)])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return ended.value.code or 0, said.out, said.err
