"""Commands that are interrupted or cannot write: what they keep, what they say, how they resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from judged import fake, judge
from running import flare, interrupt_fitting, interrupt_sampling

from chaos.commands import Command, equal, run
from chaos.points import Point
from flare import Result, bench
from flare.cli import main
from flare.cli.scored import write_verdicts
from flare.storage.locks import lock
from flare.storage.resume import Resume

FLARE = str(Path(sys.executable).with_name("flare"))  # the installed entry point
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
FIT = ["fit", "sines", "--subset", 20, "--pairs", 2000, "--no-check", "-q"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A directory with a scorer."""
    home = tmp_path_factory.mktemp("fitted")
    flare(*FIT, "--out", "scorer", cwd=home)
    return home


def test_ctrl_c_during_a_fit_promises_only_what_is_kept(tmp_path):
    fit = [*FIT, "--out", "cut"]
    stopped = flare(*fit, cwd=tmp_path, code=130, stop=interrupt_fitting).stderr
    assert stopped.strip() == "stopped."
    assert list(tmp_path.iterdir()) == []


def save_often():
    """The command line, with a checkpoint after every batch of a fit."""
    Resume.beside.__func__.__defaults__ = (0.0,)
    main()


def test_an_interrupted_fit_is_resumed_from_its_checkpoint(tmp_path, fitted):
    home = tmp_path / "home"
    fit = ["fit", "sines", "--subset", 20, "--pairs", 2000, "--no-check", "-q", "--out", "scorer"]
    command = Command(fit, home, program=save_often, points=[interrupt_fitting])
    assert command.codes() == [130]
    assert "The work so far is kept: the same command resumes it." in command.said
    assert list(home.glob(".scorer.parts/**/*.safetensors"))
    run(fit, home)
    assert equal(home / "scorer", fitted / "scorer")
    assert [path.name for path in home.iterdir()] == ["scorer"]


def test_a_fit_that_is_killed_ends_as_if_nothing_had_happened(tmp_path, fitted):
    fit = [*FIT, "--out", "scorer"]
    # half written; written, and not yet said
    for point in ("flare.storage.checkpoint.save_json", "flare.cli.scorer_commands.show_facts"):
        flare(*fit, cwd=tmp_path, code=-9, stop=Point(point))
        assert (tmp_path / ".scorer.parts").is_dir()
    flare(*fit, cwd=tmp_path)
    assert equal(tmp_path / "scorer", fitted / "scorer")
    left = [path.name for path in tmp_path.iterdir() if ".partial" not in path.name]
    assert left == ["scorer"]
    assert "scorer is a scorer: choose another --out" in flare(*fit, cwd=tmp_path, code=2).stderr


def test_an_interrupted_sampling_is_resumed(fitted):
    options = ["sample", "scorer", "-n", 30, "--batch-size", 5, "--steps", 5, "-q", "--out"]
    stopped = flare(*options, "cut.safetensors", cwd=fitted, code=130, stop=interrupt_sampling).stderr
    assert "stopped. The work so far is kept: the same command resumes it." in stopped
    parts = sorted(fitted.glob(".cut.safetensors.parts/*/*.safetensors"))
    assert [part.stem for part in parts] == ["0", "10", "5"]
    first = Result.load(parts[0])
    replace(first, samples=torch.ones(5, 10)).save(parts[0])  # a part on disk is reused
    flare(*options, "cut.safetensors", cwd=fitted)
    flare(*options, "whole.safetensors", cwd=fitted)
    a, b = (Result.load(fitted / f"{name}.safetensors") for name in ("cut", "whole"))
    assert (a.samples[:5] == 1).all()
    assert torch.equal(a.samples[5:], b.samples[5:])
    assert torch.equal(a.p_value, b.p_value)
    assert not (fitted / ".cut.safetensors.parts").exists()


def test_an_interrupted_scoring_is_resumed(fitted):
    np.save(fitted / "many.npy", bench.datasets.make("sines", 2100, seed=3))
    options = ["score", "scorer", "many.npy", "-q", "--out"]
    stop = Point("flare.Result.save", call=2, signal=signal.SIGINT)
    stopped = flare(*options, "cut.csv", cwd=fitted, code=130, stop=stop)
    assert "the same command resumes it" in stopped.stderr
    assert len(list(fitted.glob(".cut.csv.parts/*/*.safetensors"))) == 2
    flare(*options, "cut.csv", cwd=fitted)
    flare(*options, "whole.csv", cwd=fitted)
    assert (fitted / "cut.csv").read_bytes() == (fitted / "whole.csv").read_bytes()


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
        write_verdicts(tmp_path / place / "table.csv", list(map(str, range(len(result)))), result)
    flare(*command, "--out", product, cwd=tmp_path / "whole")
    for point in (
        "os.fsync",
        "flare.cli.result_commands.show_facts",
    ):  # half written; written, and not yet said
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
