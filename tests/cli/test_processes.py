"""The commands as torchrun and accelerate start them: two processes write what one writes, and once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chaos.commands import run
from flare import Result, checkpoint

pytestmark = pytest.mark.usefixtures("warm")
SOURCE = Path(__file__).parents[2] / "src"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
FIT = ["fit", "sines", "--count", "60", "--pairs", "2000", "--out", "posterior.safetensors"]
SAMPLE = [
    "sample", "sines", "-n", "25", "--batch-size", "5", "--sampler", "ddim", "--steps", "4",
    "--directions", "2", "--posterior", "posterior.safetensors", "--out", "samples.safetensors", "--json",
]  # fmt: skip


def launched(launcher: list[str], arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "flare", *arguments],
        cwd=cwd, env=ENV, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow  # both launchers start themselves and two processes, each of which imports torch
def test_torchrun_fits_and_accelerate_samples(tmp_path):
    """H to rounding; samples and scores from the same posterior to the last bit."""
    pytest.importorskip("accelerate")
    alone, both = tmp_path / "alone", tmp_path / "both"
    both.mkdir()
    run([*FIT, "-q"], alone)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = launched(torchrun, FIT, both)
    assert done.stdout.strip() == "posterior.safetensors", "one process speaks"
    assert done.stderr.count("residual variance") == 1
    (one, about), (two, about_two) = (checkpoint.load(d / "posterior.safetensors") for d in (alone, both))
    torch.testing.assert_close(two["eigenvalues"], one["eigenvalues"], rtol=1e-9, atol=1e-9)
    assert about_two["prior_precision"] == pytest.approx(about["prior_precision"], rel=1e-9)

    written = sorted(path.name for path in alone.iterdir())
    assert written == sorted(path.name for path in both.iterdir())
    for name in written:
        (both / name).write_bytes((alone / name).read_bytes())
    run(SAMPLE, alone)
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    done = launched([*launcher, "--mixed_precision", "no", "--dynamo_backend", "no"], SAMPLE, both)
    assert done.stdout.count('"samples": "samples.safetensors"') == 1
    one, two = (Result.load(d / "samples.safetensors") for d in (alone, both))
    assert torch.equal(one.samples, two.samples)
    assert torch.equal(one.score, two.score)
    assert sorted(p.name for p in both.iterdir()) == sorted([*written, "samples.safetensors"])


def test_score_and_evaluate_are_those_of_one_process(tmp_path):
    home = tmp_path / "home"
    run([*FIT, "-q"], home)
    run(
        ["sample", "sines", "-n", 1005, "--sampler", "ddim", "--steps", 3, "--out", "x.safetensors", "-q"],
        home,
    )
    score = ["score", "sines", "--samples", "x.safetensors", "--posterior", "posterior.safetensors", "--out"]
    run([*score, "one.safetensors"], home)
    run([*score, "two.safetensors"], home, processes=2)
    one, two = (Result.load(home / f"{name}.safetensors") for name in ("one", "two"))
    assert torch.equal(one.samples, two.samples)
    assert torch.equal(one.score, two.score)
    evaluate = ["evaluate", "one.safetensors", "--truth", "sines", "--json"]
    assert run(evaluate, home)[0] == run(evaluate, home, processes=2)[0]
