"""Commands that are interrupted or cannot write: what they keep, what they say, how they resume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from judged import fake, judge
from running import flare, interrupt_fitting, interrupt_sampling, interrupt_training

from chaos.points import Point
from flare import Result, checkpoint
from flare.cli.tables import write_verdicts
from flare.storage.locks import lock

FLARE = str(Path(sys.executable).with_name("flare"))  # the installed entry point
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def test_ctrl_c_keeps_the_work_and_the_same_command_ends_it(tmp_path):
    options = ["train", "sines", "--steps", 30, "--batch-size", 16, "--quiet"]
    cut = [*options, "--out", "cut"]
    stopped = flare(*cut, cwd=tmp_path, code=130, stop=interrupt_training).stderr
    assert "stopped. The work so far is kept: the same command resumes it." in stopped
    assert (tmp_path / "cut" / "training.safetensors").is_file()
    other = flare(*cut, "--learning-rate", "1e-3", cwd=tmp_path, code=2).stderr
    assert "other settings: --learning-rate was 0.0005, now 0.001. Give it those to resume it" in other
    flare(*cut, cwd=tmp_path)
    flare(*options, "--out", "whole", cwd=tmp_path)
    assert (tmp_path / "cut" / "loss.csv").read_bytes() == (tmp_path / "whole" / "loss.csv").read_bytes()
    # not the bytes of the file: safetensors writes metadata in any order
    cut, whole = (checkpoint.load(tmp_path / run / "model.safetensors") for run in ("cut", "whole"))
    assert cut[1] == whole[1]
    assert cut[0].keys() == whole[0].keys()
    assert all(torch.equal(value, whole[0][name]) for name, value in cut[0].items())


def test_ctrl_c_promises_nothing_that_is_not_kept(tmp_path):
    fit = ["fit", "sines", "--count", 20, "--pairs", 2000, "--out", "p.safetensors", "-q"]
    stopped = flare(*fit, cwd=tmp_path, code=130, stop=interrupt_fitting).stderr
    assert stopped.strip() == "stopped."
    stopped = flare(*fit, "--save-every", 0, cwd=tmp_path, code=130, stop=interrupt_fitting).stderr
    assert "the same command resumes it" in stopped


def test_an_interrupted_sampling_is_resumed(tmp_path):
    options = [
        "sample",
        "sines",
        "-n",
        30,
        "--batch-size",
        5,
        "--sampler",
        "ddim",
        "--steps",
        5,
        "-q",
        "--out",
    ]
    stopped = flare(*options, "cut.safetensors", cwd=tmp_path, code=130, stop=interrupt_sampling).stderr
    assert "the same command resumes it" in stopped
    parts = sorted(tmp_path.glob(".cut.safetensors.parts/*/*.safetensors"))
    assert [part.stem for part in parts] == ["0", "10", "5"]
    Result(torch.ones(5, 10)).save(parts[0])  # a part on disk is reused
    flare(*options, "cut.safetensors", cwd=tmp_path)
    flare(*options, "whole.safetensors", cwd=tmp_path)
    a, b = (Result.load(tmp_path / f"{name}.safetensors").samples for name in ("cut", "whole"))
    assert (a[:5] == 1).all()
    assert torch.equal(a[5:], b[5:])
    assert not (tmp_path / ".cut.safetensors.parts").exists()


def test_a_full_disk_or_a_closed_directory_loses_nothing(tmp_path, tmp_path_factory):
    """A limit on the size of files stands in for a full disk: the write fails, the old file stays."""
    samples = tmp_path_factory.mktemp("home") / "samples.safetensors"
    Result(torch.randn(30, 10), scores={"trace": torch.rand(30)}).save(samples)
    target = tmp_path / "kept.safetensors"
    target.write_bytes(b"the old file")
    command = f"ulimit -f 1; {FLARE} filter {samples} --keep 0.9 --overwrite --out {target}"
    done = subprocess.run(["bash", "-c", command], env=ENV, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    assert target.read_bytes() == b"the old file"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.safetensors"]
    (tmp_path / "file").write_text("not a directory")
    inside = flare("filter", samples, "--keep", 0.5, "--out", "file/kept.npz", cwd=tmp_path, code=2)
    assert "error:" in inside.stderr


@pytest.mark.parametrize(
    ("command", "product"),
    [
        (["filter", "samples.safetensors", "--keep", 0.5], "kept.npz"),
        (["filter", "table.csv", "--keep", 0.5], "kept.csv"),
        (["report", "samples.safetensors"], "page.html"),
    ],
    ids=["filter", "filter a table", "report"],
)
def test_a_filter_and_a_report_that_are_killed_end_as_if_nothing_had_happened(tmp_path, command, product):
    for place in ("whole", "cut"):
        (tmp_path / place).mkdir()
        result = judge(fake((2,)))
        result.save(tmp_path / place / "samples.safetensors")
        write_verdicts(tmp_path / place / "table.csv", list(map(str, range(len(result)))), result.verdict)
    flare(*command, "--out", product, cwd=tmp_path / "whole")
    name = command[0]
    for point in ("os.fsync", f"flare.cli.{name}.show_facts"):  # half written; written, and not yet said
        flare(*command, "--out", product, cwd=tmp_path / "cut", code=-9, stop=Point(point))
    again = flare(*command, "--out", product, cwd=tmp_path / "cut")
    assert again.stdout.strip() == product
    whole, cut = (
        {path.name: path.read_bytes() for path in (tmp_path / each).iterdir()} for each in ("whole", "cut")
    )
    assert cut.keys() == whole.keys()
    assert cut[product] == whole[product]
    finished = flare(*command, "--out", product, cwd=tmp_path / "cut", code=2).stderr
    assert "exists: choose another --out, or replace it with --overwrite" in " ".join(finished.split())


def test_a_file_that_another_process_writes_is_left_alone(tmp_path):
    judge(fake((2,))).save(tmp_path / "samples.safetensors")
    read = ["samples.safetensors", "--out"]
    for command, product in (
        (["filter", "--keep", 0.5, *read], "kept.npz"),
        (["report", *read], "page.html"),
        (["demo", "--out"], "folder"),
    ):
        with lock(tmp_path / product):
            said = flare(*command, product, cwd=tmp_path, code=2).stderr
        assert "is being written by process" in " ".join(said.split())
        assert not (tmp_path / product).exists()
