"""An installed FLARE: make an environment, and try the package in it, outside of the repository."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: the shipped models and the report are package data; the command line is an entry point
TRY = """
import flare, torch
print("flare", flare.__version__, "from", flare.__file__)
for name in flare.bench.NAMES:
    assert flare.bench.load(name).data.isfinite().all(), name
model = flare.bench.load("grid")
pairs = flare.noising.pairs(model.data, model.schedule, n=200, seed=0, weighting=model.weighting)
subset = flare.subsets.random(model.denoiser, count=50, seed=0)
posterior = flare.posteriors.dense(model.denoiser, subset, pairs)
result = flare.sample(model.denoiser, model.sampler("ddim", 5), posterior, n=20, shape=model.shape)
assert int(result.keep(0.5).sum()) == 10
"""


def run(command: Sequence[object], where: Path = ROOT, quiet: bool = False) -> None:
    """Run a command with one thread and without the repository on the path; raise if it fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    stdout = subprocess.DEVNULL if quiet else None
    subprocess.run([str(word) for word in command], cwd=where, env=env, stdout=stdout, check=True)


def install(python: str, home: Path, package: str) -> None:
    """Make an empty environment and install a package with the tested versions."""
    run([python, "-m", "venv", "--clear", home])
    pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--constraint", ROOT / "constraints.txt", package])


def smoke(home: Path) -> None:
    """Import it without a warning, use it in Python, and run the command line and a small demo."""
    flare, python = home / "bin" / "flare", home / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="flare-smoke-") as name:
        where = Path(name)  # not the source directory, so that the installed package is imported
        run([python, "-W", "error", "-c", "import flare"], where)
        run([python, "-c", TRY], where)
        run([flare, "--version"], where, quiet=True)
        run([flare, "--help"], where, quiet=True)
        run([flare, "demo", "-n", "50", "--out", "demo"], where)
        if not (where / "demo" / "report.html").is_file():
            raise RuntimeError("flare demo wrote no report.html")
