"""Two processes beside one: `flare fit`, `sample` and `score` on the model of chirps, in wall-clock time.

Both cores of the machine must be idle: this is the one benchmark that other programs disturb.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.document import table

from .harness import command, judge

TARGET = 1.8


def section(quick: bool = False) -> str:
    """Run each command with one process and with two, and write it down."""
    rows, verdicts = [], []
    with tempfile.TemporaryDirectory() as home:
        for name, arguments in _jobs(10 if quick else 1).items():
            alone, both = (_time(arguments, Path(home), processes) for processes in (1, 2))
            gain = alone / both
            rows.append([f"`flare {' '.join(arguments)}`", f"{alone:.0f}", f"{both:.0f}", f"{gain:.2f}"])
            verdicts.append(judge(f"two processes, {name}", gain, TARGET, least=True))
    head = ("command", "one process, s", "two, s", "times as fast")
    return (
        "## Two processes\n\nWall-clock seconds of whole commands, the start of Python included, one thread "
        f"per process.\n\n{table(head, rows)}\n\n" + "\n".join(verdicts) + "\n\n"
        "Not shared are the start of Python, the eigendecomposition, the model check and the principal axes "
        "of a fit, and joining the files of the samples."
    )


def _jobs(shrink: int) -> dict[str, list[str]]:
    """The commands, in the order in which one needs the file of another."""
    pairs, n = str(400_000 // shrink), str(120_000 // shrink)
    return {
        "fit": ["fit", "chirp", "--pairs", pairs, "--out", "scorer", "--overwrite"],
        "sample": ["sample", "scorer", "-n", n, "--out", "samples.safetensors", "--overwrite"],
        "score": ["score", "scorer", "samples.safetensors", "--out", "scored.safetensors", "--overwrite"],
    }


def _time(arguments: list[str], home: Path, processes: int) -> float:
    """Wall-clock seconds of a command in one or several processes of one thread each."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "flare", *arguments, "--processes", str(processes), "--quiet"],
        cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


if __name__ == "__main__":
    command("processes", __doc__, section)
