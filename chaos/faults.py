"""Full or read-only disks, damaged or foreign files, two writers of one directory.

Each case is a function of a directory: it asserts that the command reports the fault, ends with an error and
leaves existing files unchanged; it returns the output of the command.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flare.storage import checkpoint

from .commands import Command, content, equal, run
from .points import Point

FIT = ["fit", "sines", "--subset", 100, "--pairs", 2000, "--no-check", "--out", "scorer", "-q"]
SAMPLE = [
    "sample", "scorer", "-n", 60, "--batch-size", 10, "--steps", 20, "--out", "samples.safetensors",
    "--overwrite", "-q",
]  # fmt: skip
ELSEWHERE = [SAMPLE[0], "../scorer", *SAMPLE[2:]]  # the scorer is in the directory above
TRAIN = [
    "bench", "train", "sines", "--out", "run", "--steps", 300, "--batch-size", 8, "--save-every", 50, "-q",
]  # fmt: skip


def full_disk(home: Path) -> str:
    """A file system without room: the old file stays, and the command works once there is room."""
    run(FIT, home)
    run(ELSEWHERE, home / "whole")
    with small_disk(home / "disk", "256k") as disk:
        (disk / "samples.safetensors").write_bytes(b"the old file")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024))
        said, _ = run(ELSEWHERE, disk, code=2)
        assert "o space left" in said, said
        assert (disk / "samples.safetensors").read_bytes() == b"the old file"
        filler.unlink()
        run(ELSEWHERE, disk)
        assert equal(disk / "samples.safetensors", home / "whole" / "samples.safetensors")
        assert [p.name for p in disk.iterdir()] == ["samples.safetensors"]
    return said


def read_only(home: Path) -> str:
    """A directory that cannot be written to."""
    run(FIT, home)
    with small_disk(home / "disk", "256k") as disk:
        (disk / "samples.safetensors").write_bytes(b"the old file")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        said, _ = run(ELSEWHERE, disk, code=2)
        assert "Read-only" in said, said
        assert (disk / "samples.safetensors").read_bytes() == b"the old file"
    return said


def flipped_byte_in_a_posterior(home: Path) -> str:
    """One bit of the eigenvectors."""
    run(FIT, home)
    _flip(home / "scorer" / "posterior.safetensors")
    said, _ = run(SAMPLE, home, code=2)
    assert "is damaged" in said, said
    assert not (home / "samples.safetensors").exists()
    return said


def flipped_byte_in_samples(home: Path) -> str:
    """One bit of the scores."""
    run(FIT, home)
    run(SAMPLE, home)
    _flip(home / "samples.safetensors")
    said, _ = run(["filter", "samples.safetensors", "--keep", 0.5], home, code=2)
    assert "is damaged" in said, said
    return said


def flipped_byte_in_weights(home: Path) -> str:
    """One bit of a trained network."""
    run([*TRAIN, "--steps", 20], home)
    _flip(home / "run" / "model.safetensors")
    said, _ = run([FIT[0], "run", *FIT[2:]], home, code=2)
    assert "is damaged" in said, said
    return said


def flipped_byte_in_a_training(home: Path) -> str:
    """One bit of the state of an interrupted training: it is neither resumed nor deleted."""
    _run_to(home, TRAIN, Point("flare.storage.checkpoint.save", call=2))
    (state,) = home.glob(".run.parts/*/training.safetensors")
    before = _flip(state)
    said, _ = run(TRAIN, home, code=2)
    assert "is damaged" in said, said
    assert state.read_bytes() == before
    return said


def damaged_parts(home: Path) -> str:
    """A truncated part and one with a flipped byte: both are named and computed again."""
    run(FIT, home)
    run(ELSEWHERE, home / "whole")
    cut = home / "cut"
    _run_to(cut, ELSEWHERE, Point("flare.results.result.Result.save", call=4))
    first, second, _ = sorted(cut.glob(".*.parts/*/*0.safetensors"))
    first.write_bytes(first.read_bytes()[:-100])
    _flip(second)
    said, _ = run(ELSEWHERE, cut)
    assert said.count("This part is computed again") == 2, said
    assert equal(cut / "samples.safetensors", home / "whole" / "samples.safetensors")
    return said[said.index("warning:") :]


def another_version(home: Path) -> str:
    """A scorer of a later format."""
    run(FIT, home)
    main = home / "scorer" / "scorer.json"
    checkpoint.save_json(main, checkpoint.load_json(main) | {"format": 99})
    said, _ = run(SAMPLE, home, code=2)
    assert "is not a scorer of format 2" in said, said
    return said


def two_at_once(home: Path) -> str:
    """Two commands that write the same run: the second is refused, the first is undisturbed."""
    held = Point("flare.network.training.Training.step", call=10, signal=signal.SIGSTOP)
    first = Command(TRAIN, home / "here", points=[held])
    pid = first.wait_until_stopped()  # it holds the lock when the second starts
    said, _ = run(TRAIN, home / "here", code=2)
    os.kill(pid, signal.SIGCONT)
    assert f"is being written by process {pid}" in said, said
    assert first.codes() == [0], first.said
    run(TRAIN, home / "alone")
    assert equal(home / "here" / "run", home / "alone" / "run")
    return said


CASES: dict[str, Callable[[Path], str]] = {
    "full disk": full_disk,
    "read-only directory": read_only,
    "flipped byte in a posterior": flipped_byte_in_a_posterior,
    "flipped byte in samples": flipped_byte_in_samples,
    "flipped byte in weights": flipped_byte_in_weights,
    "flipped byte in the state of a training": flipped_byte_in_a_training,
    "truncated part, and one with a flipped byte": damaged_parts,
    "scorer of another version": another_version,
    "two processes on one run directory": two_at_once,
}
MOUNTING = ("full disk", "read-only directory")  # need permission to mount


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A small file system in memory."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _flip(path: Path) -> bytes:
    """Flip one bit in the middle of the tensors of a file; returns the new content."""
    assert content(path)
    damaged = bytearray(path.read_bytes())
    damaged[-len(damaged) // 8] ^= 4
    path.write_bytes(damaged)
    return bytes(damaged)


def _run_to(directory: Path, arguments: Sequence[object], point: Point) -> None:
    """Run a command that is killed at a point."""
    command = Command(arguments, directory, points=[point])
    codes = command.codes()
    assert codes == [-signal.SIGKILL], f"it never came to {point}: {codes}, {command.said}"
