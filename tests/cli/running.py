"""`flare` in a process of its own that starts at once: forked from a server which has torch loaded.

The server knows nothing of the tests, so a command sees what it would see in a terminal.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(  # what commands import late
    [
        "flare.cli.runs", "flare.sampling", "flare.training", "flare.evaluation.oracles", "flare.report",
        "torch._dynamo", "torch.distributed.tensor", "rich.progress", "rich.table",
    ]
)  # fmt: skip


def flare(*arguments, cwd, code=0, stop: Callable[[], None] | None = None):
    """Run a command: its exit code, standard output and standard error, without a traceback.

    Args:
        arguments: of the command line.
        cwd: where it runs.
        code: the exit code that it must have; None for any.
        stop: a function of a module that is called in the process first, to make it fail at a point.
    """
    with tempfile.TemporaryDirectory() as home:
        out, err = Path(home) / "out", Path(home) / "err"
        words = [str(word) for word in arguments]
        process = CONTEXT.Process(target=_run, args=(words, str(cwd), str(out), str(err), stop))
        process.start()
        process.join(200)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"flare {words} does not end")
        done = SimpleNamespace(returncode=process.exitcode, stdout=out.read_text(), stderr=err.read_text())
    assert code is None or done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _run(words: list[str], cwd: str, out: str, err: str, stop: Callable[[], None] | None) -> None:
    os.chdir(cwd)
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1"}
    for number, name, file in ((1, "stdout", out), (2, "stderr", err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o644), number)
        setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))
    import torch

    from flare.cli import main

    torch.set_num_threads(1)
    sys.argv = ["flare", *words]
    if stop is not None:
        stop()
    main()


def interrupted_at(call: int, method: Callable[..., object]) -> Callable[..., object]:
    """The method, with Ctrl-C pressed during its call of this number."""
    count = 0

    @functools.wraps(method)
    def pressed(*arguments, **keywords):
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGINT)
        return method(*arguments, **keywords)

    return pressed


def interrupt_training() -> None:
    """Ctrl-C in the middle of a training."""
    from flare.network.training import Training

    Training.step = interrupted_at(9, Training.step)


def interrupt_sampling() -> None:
    """Ctrl-C when three parts are finished."""
    from flare import Result

    Result.save = interrupted_at(3, Result.save)


def interrupt_fitting() -> None:
    """Ctrl-C when the sums of the first batches may be saved."""
    from flare.storage.resume import Resume

    Resume.save_if_due = interrupted_at(2, Resume.save_if_due)
