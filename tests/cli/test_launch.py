"""One command in several processes: who speaks, who stops whom, and with which status."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from flare.cli import launch

SPEAK = "import os, sys, time, pathlib\nrank = int(os.environ['RANK'])\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """What runs instead of flare."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    place = tmp_path / "flare"
    place.mkdir()
    (place / "__init__.py").touch()
    here = tmp_path / "here"
    here.mkdir()
    (here / "flare.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(here)

    def write(lines: str) -> None:
        body = "".join(f"    {line}\n" for line in (SPEAK + lines).splitlines())
        (place / "cli.py").write_text(f"def main():\n{body}")

    return write


def test_processes_know_each_other_and_one_speaks(program, capfd):
    program(
        "keys = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')\n"
        "import json\n"
        "told = [sys.argv[1:], *map(os.environ.get, keys)]\n"
        "pathlib.Path(f'{rank}.json').write_text(json.dumps(told))\n"
        "print('process', rank)"
    )
    assert launch.launch(3, ["sample", "a b"]) == 0
    told = [json.loads(Path(f"{rank}.json").read_text()) for rank in range(3)]
    port = told[0][-1]
    assert told == [[["sample", "a b"], str(k), str(k), "3", "127.0.0.1", port] for k in range(3)]
    assert capfd.readouterr().out == "process 0\n"


def test_a_process_that_fails_stops_the_others_and_is_heard(program, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 0.1)
    program("sys.exit('out of luck') if rank == 1 else time.sleep(1000)")
    assert launch.launch(2, []) == 1
    assert capfd.readouterr().err == "out of luck\n"


def test_a_lost_contact_is_not_the_cause(program, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 1000.0)  # both end by themselves
    program(f"sys.stderr.write(str(rank)); sys.exit({launch.LOST} if rank == 0 else 2)")
    assert launch.launch(2, []) == 2
    assert capfd.readouterr().err == "01"


def test_bad_input_is_said_once(program, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 1000.0)
    program("sys.stderr.write('no such file'); sys.exit(2)")
    assert launch.launch(3, []) == 2
    assert capfd.readouterr().err == "no such file"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_process_has_the_status_of_shells(program, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 0.1)
    program("os.kill(os.getpid(), 9) if rank == 1 else time.sleep(1000)")
    assert launch.launch(2, []) == 137
    assert "process 2 of 2 was ended by SIGKILL" in capfd.readouterr().err


def test_an_interrupt_waits_for_the_processes(program, monkeypatch):
    sleep, sleeps = launch.time.sleep, []

    def interrupted(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 1:
            raise KeyboardInterrupt
        sleep(seconds)

    program("pathlib.Path(str(rank)).touch()")
    monkeypatch.setattr(launch, "_PATIENCE", 1000.0)
    monkeypatch.setattr(launch.time, "sleep", interrupted)
    assert launch.launch(2, []) == 130
    assert {path.name for path in Path().iterdir()} >= {"0", "1"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_who_is_told_to_end_takes_the_processes_along(program, monkeypatch):
    program("pathlib.Path(str(rank)).write_text(str(os.getpid())); time.sleep(1000)")
    sleep = launch.time.sleep

    def told_when_all_run(seconds: float) -> None:
        sleep(seconds)
        if all(path.exists() and path.read_text() for path in map(Path, "01")):
            monkeypatch.setattr(launch.time, "sleep", sleep)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launch.time, "sleep", told_when_all_run)
    with pytest.raises(SystemExit, match="143"):
        launch.launch(2, [])
    for path in map(Path, "01"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
