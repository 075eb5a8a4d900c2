from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from flare.storage.checkpoint import PARTIAL, atomic
from flare.storage.locks import lock
from flare.storage.resume import Resume

HOLD = """
import sys
from flare.storage.locks import lock
with lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of tmp_path/run."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_learns_who_holds_the_lock_and_gets_it_when_the_holder_is_killed(tmp_path, holder):
    said = rf"run is being written by process {holder.pid} on .*since"
    with pytest.raises(BlockingIOError, match=said), lock(tmp_path / "run"):
        pytest.fail("two hold it")
    with lock(tmp_path / "other"):
        pass
    holder.kill()
    holder.wait()
    assert (tmp_path / ".run.lock").is_file()
    with lock(tmp_path / "run"):
        assert str(os.getpid()) in (tmp_path / ".run.lock").read_text()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_partial_files_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    with atomic(tmp_path / "run" / "a.json") as partial:
        names = [partial.name, partial.name.replace("a.json", "b.json")]
        partial.write_text("whole")
    for name in names:
        (tmp_path / "run" / name).write_text("half")
    scorer = tmp_path / "run" / f".scorer{PARTIAL}x"  # of a killed `Scorer.save`: it stays
    scorer.mkdir()
    with lock(tmp_path / "run" / "a.json"):
        pass
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted([names[1], scorer.name, "a.json"])
    with lock(tmp_path / "run"):
        pass
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted([scorer.name, "a.json"])


def test_a_name_with_wildcards_removes_its_own_partial_files_alone(tmp_path):
    for name in ("[ab].json", "a.json"):
        with atomic(tmp_path / name) as partial:
            copy = tmp_path / f"{partial.name}.left"
        copy.write_text("half")
    with lock(tmp_path / "[ab].json"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["[ab].json", "a.json", copy.name])


def test_partial_files_of_a_running_process_are_kept(tmp_path):
    run = tmp_path / "run"
    with lock(run / "a.json"), atomic(run / "a.json") as partial, lock(run):
        partial.write_text("whole")
    assert (run / "a.json").read_text() == "whole"


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs O_NOFOLLOW")
def test_a_lock_is_never_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".run.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"), lock(tmp_path / "run"):
        pytest.fail("held")
    assert victim.read_text() == "mine"
    (tmp_path / ".file.parts").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"\.file\.parts is a link"):
        Resume.beside(tmp_path / "file")


def test_a_lock_file_removed_while_being_locked_is_created_again(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    removed = []

    def flock(file, how):
        if not removed:  # its previous holder has just finished
            removed.append(True)
            (tmp_path / ".run.lock").unlink()
        return real(file, how)

    real = fcntl.flock
    monkeypatch.setattr("fcntl.flock", flock)
    with lock(tmp_path / "run"), pytest.raises(BlockingIOError), lock(tmp_path / "run"):
        pytest.fail("two hold it")


def test_a_file_system_without_locks_is_a_warning_and_other_failures_are_errors(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")

    def refuse(number):
        def flock(file, how):
            raise OSError(number, os.strerror(number))

        return flock

    for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        monkeypatch.setattr("fcntl.flock", refuse(number))
        with pytest.warns(RuntimeWarning, match="has no locks") as caught, lock(tmp_path / "run"):
            pass
        assert caught[0].filename == __file__
        assert not list(tmp_path.iterdir())
    monkeypatch.setattr("fcntl.flock", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"), lock(tmp_path / "run"):
        pytest.fail("held")
