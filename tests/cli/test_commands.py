"""The entry point, and what all commands share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from running import flare

import flare as library
from flare import Result

FLARE = str(Path(sys.executable).with_name("flare"))  # the installed entry point
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def test_the_installed_entry_point_tells_its_version(tmp_path):
    done = subprocess.run([FLARE, "--version"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"flare {library.__version__}\n")


def test_answers_go_to_standard_output_and_remarks_to_standard_error(tmp_path):
    Result(torch.randn(10, 3), scores={"trace": torch.rand(10)}).save(tmp_path / "samples.npz")
    done = flare("filter", "samples.npz", "--keep", 0.5, "--out", "kept.npz", cwd=tmp_path)
    assert done.stdout.strip() == "kept.npz"
    assert "by region" in " ".join(done.stderr.split())
    assert done.stderr.splitlines()[-1] == "next: flare calibrate samples.npz"
    done = flare("filter", "samples.npz", "--keep", 0.5, "--out", "kept.npy", "--quiet", cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("kept.npy", "")
    assert np.load(tmp_path / "kept.npy").shape == (5, 3)


def test_a_command_for_one_process_refuses_to_be_started_in_two(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = subprocess.run(
        [sys.executable, "-m", "flare", "info", "sines"], cwd=tmp_path, capture_output=True, text=True,
        env={**ENV, "WORLD_SIZE": "2", "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "info runs in one process, but it was started in 2" in done.stderr


def test_the_defaults_of_the_command_line_are_those_of_the_library():
    import inspect

    from flare.cli import result_commands, scorer_commands

    for command, function, names in (
        (
            scorer_commands.fit_,
            library.fit,
            ["structure", "pairs", "prior_precision", "scale", "rank", "check", "seed"],
        ),
        (scorer_commands.sample, library.Scorer.sample, ["seed", "steps", "directions", "score"]),
        (scorer_commands.check, library.Scorer.check, ["n", "draws", "steps"]),
        (result_commands.calibrate_, library.calibrate, ["risk", "confidence", "design"]),
    ):
        ours, theirs = (inspect.signature(each).parameters for each in (command, function))
        assert {name: ours[name].default for name in names} == {name: theirs[name].default for name in names}
