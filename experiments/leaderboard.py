"""The results of the leaderboard, `tasks/leaderboard`: `python -m experiments.leaderboard [ENTRY ...]`.

It runs every entry on every task that its file lacks; `python -m tools.leaderboard` writes the page
from the files. `--check` computes entries again on small tasks as other processors would, and prints how
far they are from the files. Example: `python -m experiments.leaderboard --check neighbors msma`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flare.bench import ENTRIES, find_tasks, read_results, run
from tools.document import ROOT

from .tasks import SETS, TASKS

RESULTS = TASKS / "leaderboard"
#: a fit of large images takes minutes, so they come last
LARGE = tuple(study for study, (_, stored_as, _) in SETS.items() if stored_as == "uint8")
SLOW = (
    "verdict",
    "epistemic_distance",
    "influence",
    "expected_residual",
    "llla",
    "gradient_norms",
    "aleatoric",
    "generative",
)
#: what makes MKL, ATen and oneDNN take the kernels of another processor
PROCESSORS = {
    "SSE": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
FIGURES = ("auroc", "average_precision")
CHECKED = ("arcs-early", "chirp", "grid", "power", "sines-early", "tumors")  # seconds for most entries


def compute(chosen: Sequence[str], tasks: Sequence[Path], results: Path) -> None:
    """Run entries on tasks that their files lack."""
    torch.set_num_threads(1)
    for name in chosen:
        started = time.time()
        run(ENTRIES[name], tasks, results / f"{name}.json", name=name, progress=False)
        print(f"{name} on {len(tasks)} tasks: {time.time() - started:.0f} s", flush=True)


def compare(name: str, results: Path) -> tuple[float, str]:
    """The greatest difference between the figures of two files of an entry, and the task that has it."""
    shipped = read_results(RESULTS / f"{name}.json")["tasks"]
    found: dict[str, dict[str, Any]] = read_results(results / f"{name}.json")["tasks"]
    return max(
        (abs(own[figure][0] - shipped[task][figure][0]), f"{figure} on {task}")
        for task, own in found.items()
        for figure in FIGURES
        if figure in own
    )


def check(chosen: Sequence[str], tasks: Sequence[Path]) -> bool:
    """Whether entries computed as other processors would agree with the files to the third digit."""
    agree = True
    for processor, settings in PROCESSORS.items():
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "experiments.leaderboard", *chosen, "--results", directory]
            command += ["--tasks", *map(str, tasks)]
            subprocess.run(command, env=os.environ | settings, cwd=ROOT, check=True, stdout=sys.stderr)
            for name in chosen:
                difference, where = compare(name, Path(directory))
                print(f"{processor:5} {name:20} {difference:.5f} ({where})", flush=True)
                agree &= difference < 5e-4
    return agree


def main() -> None:
    """Run what is missing, quick things first; or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("entries", nargs="*", default=sorted(ENTRIES, key=lambda name: name in SLOW))
    parser.add_argument("--check", action="store_true", help="compute again as other processors would")
    parser.add_argument("--tasks", nargs="*", help="task directories")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory of the files")
    given = parser.parse_args()
    directories = sorted(find_tasks(given.tasks), key=lambda path: path.name in LARGE)
    if given.check:
        chosen = [path for path in directories if given.tasks or path.name in CHECKED]
        sys.exit(0 if check(given.entries, chosen) else 1)
    for some in ([path for path in directories if path.name not in LARGE], directories):
        compute(given.entries, some, given.results)


if __name__ == "__main__":
    main()
