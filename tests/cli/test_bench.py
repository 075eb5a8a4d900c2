"""`flare bench` trains benchmark models, and its help lists the names of the library."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch
from running import flare, interrupt_training

import flare as library
from flare.bench import tasks
from flare.bench.baselines import BASELINES
from flare.cli import bench as declared
from flare.diffusion.noising import LEVEL_SAMPLINGS
from flare.storage import checkpoint


def test_train_writes_a_run_and_resumes_it(tmp_path):
    options = ["bench", "train", "sines", "--out", "run", "--steps", 40, "--batch-size", 32]
    assert "trained sines: mean loss" in flare(*options, cwd=tmp_path).stderr
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json", "loss.csv", "model.safetensors",
    ]  # fmt: skip
    assert library.bench.load(tmp_path / "run").source == str(tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    said = flare(*options, cwd=tmp_path, code=2).stderr
    assert "run is a run directory: choose another --out, or replace it with --overwrite." in said
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    flare(*options, "--seed", 3, "--overwrite", "--quiet", cwd=tmp_path)
    assert library.bench.load(tmp_path / "run").config["training"]["seed"] == 3
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before

    cut = ["bench", "train", "sines", "--steps", 30, "--batch-size", 16, "--quiet", "--out"]
    stopped = flare(*cut, "cut", cwd=tmp_path, code=130, stop=interrupt_training).stderr
    assert "stopped. The work so far is kept: the same command resumes it." in stopped
    assert list(tmp_path.glob(".cut.parts/*/training.safetensors"))
    for part in ("cut", "whole"):
        flare(*cut, part, cwd=tmp_path)
    assert not list(tmp_path.glob(".*.parts"))
    assert (tmp_path / "cut" / "loss.csv").read_bytes() == (tmp_path / "whole" / "loss.csv").read_bytes()
    halves = [checkpoint.load(tmp_path / run / "model.safetensors")[0] for run in ("cut", "whole")]
    assert all(torch.equal(value, halves[1][name]) for name, value in halves[0].items())


def test_help_starts_at_once_and_its_lists_are_those_of_the_library():
    """Help imports neither torch nor the library, so the names are typed in it."""
    assert ", ".join(sorted(LEVEL_SAMPLINGS)) == declared.LEVEL_SAMPLINGS
    assert ", ".join(["all", *tasks.GROUPS, *tasks.KINDS]) == declared.ORDERS
    code = "import sys; from flare.cli.bench import bench_app; print({'torch', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_options_of_a_baseline_are_those_of_its_signature():
    for entry in BASELINES.values():
        parameters = inspect.signature(entry.run).parameters
        assert all(parameters[name].default == default for name, default in entry.options.items())
        assert not {"n", "shape", "seed", "progress"} & set(entry.options)
    assert set(BASELINES["bayesdiff"].options) == {"draws", "every", "total", "variant", "directions"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sine", "--out", "x"], "did you mean 'sines'"),
        (["train", "sines", "--out", "x.npy"], "x.npy exists and is not a run directory"),
        (["train", "sines", "--out", "full", "--overwrite"], "full exists and is not a run directory"),
        (["train", "sines", "--out", "full"], "full exists and is not a run directory: choose another --out"),
        (["train", "sines", "--out", "x", "--steps", "0"], "--steps must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--samples", "0"], "Invalid value for '--samples'"),
        (["train", "sines", "--out", "x", "--weighting", "snr"], "unknown weighting 'snr'"),
        (["train", "sines", "--out", "x", "--level-sampling", "snr"], "unknown level sampling 'snr'"),
    ],
)
def test_bad_input_is_refused(tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "x.npy").touch()
    assert message in flare("bench", *arguments, cwd=tmp_path, code=2).stderr.replace("\n", " ")
