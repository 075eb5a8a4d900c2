"""The commands as torchrun and accelerate start them: two processes write what one writes, and once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chaos.commands import run
from flare import Result
from flare.storage import checkpoint

pytestmark = pytest.mark.usefixtures("warm")
SOURCE = Path(__file__).parents[2] / "src"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
FIT = ["fit", "sines", "--subset", "60", "--pairs", "2000", "--out", "scorer"]
SAMPLE = [
    "sample", "scorer", "-n", "25", "--batch-size", "5", "--steps", "4", "--directions", "2",
    "--out", "samples.safetensors", "--json",
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
    assert done.stdout.strip() == "scorer", "one process speaks"
    assert done.stderr.count("residual variance") == 1
    (one, about), (two, about_two) = (
        checkpoint.load(d / "scorer" / "posterior.safetensors") for d in (alone, both)
    )
    torch.testing.assert_close(two["eigenvalues"], one["eigenvalues"], rtol=1e-9, atol=1e-9)
    # the maximizer of the marginal likelihood stops at 1e-6
    assert about_two["prior_precision"] == pytest.approx(about["prior_precision"], rel=1e-5)

    assert [path.name for path in both.iterdir()] == ["scorer"]
    shutil.rmtree(both / "scorer")
    shutil.copytree(alone / "scorer", both / "scorer")
    run(SAMPLE, alone)
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    done = launched([*launcher, "--mixed_precision", "no", "--dynamo_backend", "no"], SAMPLE, both)
    assert done.stdout.count('"samples": "samples.safetensors"') == 1
    one, two = (Result.load(d / "samples.safetensors") for d in (alone, both))
    assert torch.equal(one.samples, two.samples)
    assert torch.equal(one.score, two.score)
    assert sorted(p.name for p in both.iterdir()) == ["samples.safetensors", "scorer"]


def test_fit_sample_and_score_are_those_of_one_process(tmp_path):
    home = tmp_path / "home"
    run([*FIT, "-q"], home)
    run([*FIT[:-1], "shared", "-q"], home, processes=2)
    (one, _), (two, _) = (checkpoint.load(home / d / "posterior.safetensors") for d in ("scorer", "shared"))
    torch.testing.assert_close(two["eigenvalues"], one["eigenvalues"], rtol=1e-9, atol=1e-9)
    sample = ["sample", "scorer", "-n", 1005, "--steps", 3, "-q", "--out"]
    score = ["score", "scorer", "one.safetensors", "--out"]
    for command, names in ((sample, ("one", "two")), (score, ("alone", "both"))):
        run([*command, f"{names[0]}.safetensors"], home)
        run([*command, f"{names[1]}.safetensors"], home, processes=2)
        first, second = (Result.load(home / f"{name}.safetensors") for name in names)
        assert torch.equal(first.samples, second.samples)
        assert torch.equal(first.p_value, second.p_value)
        assert torch.equal(first.regions, second.regions)
