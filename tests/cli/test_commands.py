"""The installed entry point, run as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from flare import checkpoint

FLARE = str(Path(sys.executable).with_name("flare"))
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def flare(*arguments, cwd, code=0):
    done = subprocess.run(
        [FLARE, *map(str, arguments)], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_train_info_and_sample(tmp_path):
    options = ["train", "sines", "--out", "run", "--steps", 40, "--batch-size", 32]
    flare(*options, cwd=tmp_path)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json", "loss.csv", "model.safetensors",
    ]  # fmt: skip
    assert "8,330" in flare("info", "run", cwd=tmp_path).stdout

    refused = flare(*options, cwd=tmp_path, code=2).stderr
    assert "run exists already; add --resume or --overwrite" in refused
    assert "finished already" in flare(*options, "--resume", cwd=tmp_path).stdout
    other = flare("train", "sines", "--out", "run", "--steps", 41, "--resume", cwd=tmp_path, code=2)
    assert "other settings (training)" in other.stderr
    flare(*options, "--overwrite", "--quiet", cwd=tmp_path)

    sample = ["sample", "run", "-n", 20, "--sampler", "ddim", "--steps", 5, "--quiet"]
    assert flare(*sample, "--out", "a.safetensors", cwd=tmp_path).stdout.strip() == "a.safetensors"
    flare(*sample, "--out", "b.safetensors", "--batch-size", 7, cwd=tmp_path)
    a, about = checkpoint.load(tmp_path / "a.safetensors")
    b, _ = checkpoint.load(tmp_path / "b.safetensors")
    assert a["samples"].shape == (20, 10)
    assert about == {"run": "run", "sampler": "ddim", "steps": 5, "seed": 0}
    torch.testing.assert_close(a["samples"], b["samples"], rtol=1e-5, atol=1e-5)


def test_ctrl_c_keeps_the_work_and_resume_ends_it(tmp_path):
    options = ["train", "sines", "--steps", "600", "--batch-size", "512", "--quiet"]
    process = subprocess.Popen(
        [FLARE, *options, "--out", "cut"], cwd=tmp_path, env=ENV, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "cut" / "config.json").is_file():
        time.sleep(0.05)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    flare(*options, "--out", "cut", "--resume", cwd=tmp_path)
    flare(*options, "--out", "whole", cwd=tmp_path)
    for file in ("model.safetensors", "loss.csv"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_demo_draws_a_picture(tmp_path):
    flare("demo", "--quiet", cwd=tmp_path)
    picture = tmp_path / "flare-demo" / "samples.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    tensors, _ = checkpoint.load(tmp_path / "flare-demo" / "samples.safetensors")
    assert tensors["samples"].shape == (500, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sine", "--out", "x"], "did you mean 'sines'"),
        (["train", "sines", "--out", "file"], "file is a file"),
        (["train", "sines", "--out", "full", "--overwrite"], "full is not a run directory"),
        (["train", "sines", "--out", "x", "--steps", "0"], "steps must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--samples", "0"], "n must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--weighting", "snr"], "unknown weighting 'snr'"),
        (["sample", "chirps"], "did you mean 'chirp'"),
        (["sample", "sines", "--sampler", "ddmp"], "did you mean 'ddpm'"),
        (["sample", "sines", "--steps", "601"], "at most 600"),
        (["sample", "sines", "-n", "0"], "n must be an integer of at least 1"),
        (["sample", "sines", "--sampler", "euler"], "euler needs a flow schedule"),
        (["info", "./nowhere"], "no run directory at ./nowhere"),
        (["info", "full"], "not a finished run"),
    ],
)
def test_bad_input_exits_2_and_says_why(tmp_path, arguments, message):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "keep").write_text("mine")
    stderr = flare(*arguments, cwd=tmp_path, code=2).stderr
    assert message in stderr
    assert (tmp_path / "full" / "keep").read_text() == (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("command", ["train", "sample", "info", "demo"])
def test_help_shows_an_example(tmp_path, command):
    assert f"flare {command}" in flare(command, "--help", cwd=tmp_path).stdout
