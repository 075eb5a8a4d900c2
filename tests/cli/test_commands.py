"""The commands, run as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from running import flare

import flare as library
from flare import Result, checkpoint, strata

FLARE = str(Path(sys.executable).with_name("flare"))  # the installed entry point
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def test_the_installed_entry_point_tells_its_version(tmp_path):
    done = subprocess.run([FLARE, "--version"], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"flare {library.__version__}\n")


def test_train_info_and_sample(tmp_path):
    options = ["train", "sines", "--out", "run", "--steps", 40, "--batch-size", 32]
    flare(*options, cwd=tmp_path)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json", "loss.csv", "model.safetensors",
    ]  # fmt: skip
    assert "8,330" in flare("info", "run", cwd=tmp_path).stdout

    mark = tmp_path / "run" / "mark"
    mark.touch()
    assert "finished already" in flare(*options, cwd=tmp_path).stdout
    assert "finished already" in flare(*options, "--resume", cwd=tmp_path).stdout
    other = flare("train", "sines", "--out", "run", "--steps", 41, "--seed", 3, cwd=tmp_path, code=2).stderr
    assert (
        "other settings: --steps was 40, now 41; --batch-size was 32, now 512; --seed was 0, now 3." in other
    )
    assert "--overwrite" in other
    other = flare(*options, "--level-sampling", "log_snr", cwd=tmp_path, code=2).stderr
    assert "--level-sampling was not set, now log_snr" in other
    assert mark.exists()
    flare(*options, "--overwrite", "--quiet", cwd=tmp_path)
    assert not mark.exists()

    sample = ["sample", "run", "-n", 20, "--sampler", "ddim", "--steps", 5, "--quiet"]
    said = flare(*sample, "--out", "a.safetensors", cwd=tmp_path)
    assert said.stdout.strip() == "a.safetensors"
    assert "have no scores, because run is not fitted; run `flare fit run` first" in said.stderr
    flare(*sample, "--out", "b.safetensors", "--batch-size", 7, cwd=tmp_path)
    flare(*sample, "--out", "c.npz", "--batch-size", "auto", cwd=tmp_path)
    refused = flare(*sample, "--batch-size", "0", cwd=tmp_path, code=2).stderr
    assert "--batch-size must be a number of at least 1, or auto, got '0'" in refused
    a, about = checkpoint.load(tmp_path / "a.safetensors")
    b, _ = checkpoint.load(tmp_path / "b.safetensors")
    assert a["samples"].shape == (20, 10)
    assert about["about"]["steps"] == 5
    torch.testing.assert_close(a["samples"], b["samples"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "c.npz")["samples"], a["samples"], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A directory with a small trained run, a posterior in it, and samples with scores."""
    home = tmp_path_factory.mktemp("home")
    flare("train", "sines", "--out", "run", "--steps", 60, "--batch-size", 64, "-q", cwd=home)
    flare("fit", "run", "--count", 50, "--pairs", 300, "-q", cwd=home)
    flare(
        "sample", "run", "-n", 30, "--sampler", "ddim", "--steps", 8, "--directions", 3,
        "--score", "trace,off_manifold", "--derivative", "exact", "-q", cwd=home,
    )  # fmt: skip
    return home


def test_fit_sample_filter_evaluate_report_info(fitted):
    result = Result.load(fitted / "samples.safetensors")
    assert list(result.scores) == ["trace", "off_manifold"]
    assert result.about["directions"] == 3
    assert result.about["derivative"] == "exact"
    assert result.profile.shape == (30, 8)
    assert not list(fitted.glob(".samples*")), "finished batches are cleared away"

    facts = json.loads(
        flare(
            "filter", "samples.safetensors", "--keep", 0.5, "--score", "off_manifold", "--json", cwd=fitted
        ).stdout
    )
    assert facts["n"] == 15
    kept = Result.load(fitted / "kept.safetensors")
    assert json.loads(flare("info", "kept.safetensors", "--json", cwd=fitted).stdout)["n"] == 15
    assert kept.scores["off_manifold"].max() == pytest.approx(facts["threshold"])
    flare(
        "filter", "samples.safetensors", "--keep", 0.5, "--strata", 3, "--typical", result.score.max().item(),
        "--out", "shared.safetensors", "-q", cwd=fitted,
    )  # fmt: skip
    shared, labels = Result.load(fitted / "shared.safetensors"), strata(result.samples, 3)
    # all scores are typical: the first half of every region
    first = torch.cat([(labels == k).nonzero()[: round(int((labels == k).sum()) / 2), 0] for k in range(3)])
    torch.testing.assert_close(shared.samples, result.samples[first.sort().values])
    threshold = result.score.median().item()
    for target in ("kept.npz", "kept.csv"):
        flare("filter", "samples.safetensors", "--below", threshold, "--out", target, "-q", cwd=fitted)
    arrays = np.load(fitted / "kept.npz")
    assert (arrays["score_trace"] <= threshold).all()
    table = np.loadtxt(fitted / "kept.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, :10], arrays["samples"], rtol=1e-6)

    found = json.loads(
        flare("evaluate", "samples.safetensors", "--truth", "sines", "--json", cwd=fitted).stdout
    )
    assert found["kept"] == 15
    assert 0 <= found["after_the_filter"] <= 1
    np.save(fitted / "held.npy", np.random.default_rng(0).normal(size=(40, 10)))
    own = json.loads(
        flare("evaluate", "samples.safetensors", "--data", "held.npy", "--json", cwd=fitted).stdout
    )
    assert "energy_distance_filtered" in own

    flare("report", "samples.safetensors", "--out", "page.html", cwd=fitted)
    assert (fitted / "page.html").stat().st_size < 6e6
    assert (
        json.loads(flare("info", "run/posterior.safetensors", "--json", cwd=fitted).stdout)["parameters"]
        == 50
    )
    assert json.loads(flare("info", "samples.safetensors", "--json", cwd=fitted).stdout)["n"] == 30


def test_check_and_score(fitted):
    check = ["check", "run", "-n", 5, "--draws", 4, "--sampler", "ddim", "--steps", 4, "--json"]
    flare(
        "fit",
        "run",
        "--count",
        20,
        "--pairs",
        100,
        "--prior",
        "1e9",
        "--out",
        "cold.safetensors",
        "-q",
        cwd=fitted,
    )
    calm = json.loads(flare(*check, "--posterior", "cold.safetensors", cwd=fitted).stdout)
    assert calm["ratio"] == pytest.approx(1, abs=0.9)
    flare(
        "fit",
        "run",
        "--count",
        50,
        "--pairs",
        100,
        "--prior",
        "1e-9",
        "--out",
        "wild.safetensors",
        "-q",
        cwd=fitted,
    )
    wild = flare(*check, "--posterior", "wild.safetensors", cwd=fitted, code=None)
    assert wild.returncode in (0, 3)
    assert (wild.returncode == 3) == (json.loads(wild.stdout)["correlation"] < 0.9)

    flare("filter", "samples.safetensors", "--keep", 1.0, "--out", "all.csv", "-q", cwd=fitted)
    flare("score", "run", "--samples", "all.csv", "--out", "scored.safetensors", "-q", cwd=fitted)
    scored = Result.load(fitted / "scored.safetensors")
    assert scored.samples.shape == (30, 10)
    assert (scored.score > 0).all()


@pytest.mark.parametrize("structure", ["diagonal", "low_rank", "kronecker", "matrix_free"])
def test_every_structure_is_fitted_and_used(fitted, structure):
    file = f"{structure}.safetensors"
    flare(
        "fit", "run", "--structure", structure, "--subset", "out.*", "--pairs", 60, "--rank", 5,
        "--prior", 10,
        "--out", file, "-q", cwd=fitted,
    )  # fmt: skip
    flare(
        "sample", "run", "-n", 4, "--posterior", file, "--sampler", "ddim", "--steps", 3, "--directions", 2,
        "--out", f"{structure}-samples.npz", "-q", cwd=fitted,
    )  # fmt: skip
    score = np.load(fitted / f"{structure}-samples.npz")["score_expected_residual"]
    assert (score >= 0).all()
    assert score.max() > 0


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 6)

    def forward(self, x, t):
        return self.out(x.flatten(1)).reshape(x.shape) + t.view(-1, 1, 1) / 100

def make():
    torch.manual_seed(0)
    return Net()

def wrong():
    return "a string"
"""


def test_bring_your_own_model(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    np.save(tmp_path / "train.npy", np.random.default_rng(0).normal(size=(50, 2, 3)))
    new = [
        "fit",
        "own",
        "--model",
        "mine:make",
        "--data",
        "train.npy",
        "--levels",
        20,
        "--fraction",
        0.5,
        "--pairs",
        50,
    ]
    flare(*new, "-q", cwd=tmp_path)
    sample = ["sample", "own", "-n", 5, "--directions", 2, "-q", "--overwrite"]
    refused = flare(*sample, cwd=tmp_path, code=2).stderr
    assert "name it again with --model mine:make" in refused, "a file alone runs no code"
    flare(*sample, "--model", "mine:make", cwd=tmp_path)
    result = Result.load(tmp_path / "samples.safetensors")
    assert result.samples.shape == (5, 2, 3)
    assert (result.score > 0).all()
    assert json.loads(flare("info", "own", "--json", cwd=tmp_path).stdout)["model"] == "mine:make"
    for model, message in [
        ("mine", "package.module:function"),
        ("nothere:make", "No module named 'nothere'"),
        ("mine:nothing", "no attribute 'nothing'"),
        ("mine:wrong", "must return a torch.nn.Module"),
    ]:
        assert message in flare(*sample, "--model", model, cwd=tmp_path, code=2).stderr
    np.save(tmp_path / "other.npy", np.zeros((9, 4)))
    wrong = flare(*sample, "--model", "mine:make", "--data", "other.npy", cwd=tmp_path, code=2).stderr
    assert "has samples of shape (4,), the model's are (2, 3)" in wrong


TORN = """
from mine import Net
import torch

class Torn(Net):
    def forward(self, x, t):  # trained as any, but far samples are lost
        out = super().forward(x, t)
        return out if self.training else out.where(x[:, :1, :1].abs() < 1, torch.nan)

def make():
    return Torn()
"""


def test_a_part_that_is_all_lost_costs_only_itself(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "torn.py").write_text(TORN)
    np.save(tmp_path / "train.npy", 0.3 * np.random.default_rng(0).normal(size=(50, 2, 3)))
    own = ["--model", "torn:make"]
    flare(
        "train", *own, "--data", "train.npy", "--out", "own", "--levels", 9, "--steps", 50, "-q", cwd=tmp_path
    )
    sample = ["sample", "own", *own, "-n", 12, "--sampler", "ddim", "-q", "--out"]
    flare(*sample, "whole.safetensors", cwd=tmp_path)
    told = flare(*sample, "single.safetensors", "--batch-size", 1, cwd=tmp_path).stderr
    assert "has NaN or infinity in 1 of 1 samples" in told
    whole, single = (Result.load(tmp_path / f"{name}.safetensors") for name in ("whole", "single"))
    assert 0 < whole.lost.sum() < 12
    torch.testing.assert_close(single.samples, whole.samples, equal_nan=True)
    assert single.about["lost"] == whole.about["lost"]


def test_an_own_model_is_trained_and_its_trained_weights_are_used(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    np.save(tmp_path / "train.npy", 0.3 * np.random.default_rng(0).normal(size=(50, 2, 3)))
    own = ["--model", "mine:make"]
    options = ["train", *own, "--data", "train.npy", "--out", "own", "--levels", 20, "--steps", 50, "-q"]
    flare(*options, cwd=tmp_path)
    assert "finished already" in flare(*options, cwd=tmp_path).stdout
    weights, _ = checkpoint.load(tmp_path / "own" / "model.safetensors")
    torch.manual_seed(0)
    assert not torch.allclose(weights["out.weight"], torch.nn.Linear(6, 6).weight)
    flare("fit", "own", *own, "--pairs", 50, "--fraction", 0.5, "-q", cwd=tmp_path)
    flare("sample", "own", *own, "-n", 4, "--directions", 2, "-q", cwd=tmp_path)
    # the posterior was fitted to the trained weights: the function's own would be refused
    (tmp_path / "own" / "model.safetensors").unlink()
    refused = flare("sample", "own", *own, "-n", 4, "--out", "b.npz", "-q", cwd=tmp_path, code=2).stderr
    assert "other weights of Net" in refused


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_every_format_that_sample_writes_is_read_by_the_others(fitted, suffix):
    told = flare(
        "sample", "run", "-n", 12, "--sampler", "ddim", "--steps", 4, "--directions", 2, "--score", "trace",
        "--out", f"drawn.{suffix}", "-q", cwd=fitted,
    ).stderr  # fmt: skip
    assert ("variance, profile, about cannot be written as csv" in told) == (suffix == "csv")
    drawn = f"drawn.{suffix}"
    facts = json.loads(flare("info", drawn, "--json", cwd=fitted).stdout)
    assert (facts["kind"], facts["n"], facts["scores"]) == ("samples", 12, "trace")
    flare("filter", drawn, "--keep", 0.5, "--out", f"half.{suffix}", "-q", cwd=fitted)
    assert len(Result.load(fitted / f"half.{suffix}")) == 6
    flare("report", drawn, "--out", "drawn.html", "-q", "--overwrite", cwd=fitted)
    found = json.loads(flare("evaluate", drawn, "--truth", "sines", "--json", cwd=fitted).stdout)
    assert found["kept"] == 6
    flare("score", "run", "--samples", drawn, "--directions", 2, "--out", f"again.{suffix}", "-q", cwd=fitted)
    again = Result.load(fitted / f"again.{suffix}")
    assert len(again) == 12
    assert list(again.scores) == ["expected_residual"], "the score that flare sample takes by default"


def test_score_has_the_names_and_options_of_sample(fitted):
    given = [
        "score",
        "run",
        "--samples",
        "samples.safetensors",
        "--directions",
        2,
        "--out",
        "real.safetensors",
    ]
    facts = json.loads(flare(*given, "--score", "trace", "--levels", "0.1,0.2", "--json", cwd=fitted).stdout)
    assert (facts["score"], facts["n"]) == ("trace", 30)
    assert list(Result.load(fitted / "real.safetensors").scores) == ["trace"]
    typical = ["--keep", 0.5, "--typical", "real.safetensors", "--json", "--overwrite"]
    typical += ["--out", "typical.safetensors"]
    by_file = json.loads(flare("filter", "samples.safetensors", *typical, cwd=fitted).stdout)
    typical[3] = facts["90%"]
    by_number = json.loads(flare("filter", "samples.safetensors", *typical, cwd=fitted).stdout)
    assert by_file["n"] == by_number["n"] == 15
    assert by_file["threshold"] == pytest.approx(by_number["threshold"])
    told = flare(*given, "--levels", "low", "--overwrite", cwd=fitted, code=2).stderr
    assert "--levels must be numbers with commas, such as 0.05,0.1,0.2, got 'low'" in told
    typical[3] = "x"
    told = flare("filter", "samples.safetensors", *typical, cwd=fitted, code=2).stderr
    assert "--typical must be a number or a file that `flare score` wrote, got 'x'" in told


def test_finished_samples_are_scored_by_both_commands(fitted):
    drawn, given = "drawn.safetensors", ["--score", "influence", "--repeats", 1, "--seed", 3, "-q"]
    sample = ["sample", "run", "-n", 6, "--sampler", "ddim", "--steps", 4]
    flare(*sample, *given, "--out", drawn, cwd=fitted)
    result = Result.load(fitted / drawn)
    assert (result.variance, result.about["rule"]) == (None, "none")
    flare("score", "run", "--samples", drawn, *given, "--out", "again.safetensors", cwd=fitted)
    again = Result.load(fitted / "again.safetensors")
    assert again.score.tolist() == pytest.approx(result.score.tolist(), rel=1e-4)
    profile = ["--score", "error_profile", "--rule", "none", "--levels", "0.1,0.5", "-q"]
    flare(*sample, *profile, "--out", "profile.safetensors", cwd=fitted)
    assert list(Result.load(fitted / "profile.safetensors").scores) == ["error_profile"]
    told = flare(*sample, *given, "--rule", "none", "--out", "x.npz", cwd=fitted, code=2).stderr
    assert "--score influence needs a posterior" in " ".join(told.split())


def test_samples_without_scores_are_announced_unless_asked_for(tmp_path):
    plain = ["sample", "sines", "-n", 2, "--sampler", "ddim", "--steps", 2, "--overwrite"]
    for given in ([], ["--quiet"], ["--json"]):
        said = flare(*plain, *given, cwd=tmp_path)
        assert (
            "warning: these samples have no scores, because sines is not fitted; run `flare fit sines --out "
            "posterior.safetensors` first, and sample with --posterior posterior.safetensors."
        ) in " ".join(said.stderr.split())
    assert json.loads(said.stdout)["n"] == 2
    assert "no scores" not in flare(*plain, "--rule", "none", cwd=tmp_path).stderr


def test_one_set_of_defaults_for_functions_commands_and_pipelines():
    import inspect

    from flare.cli import sample, score
    from flare.core import DIRECTIONS

    for function in (library.sample, library.score, library.FlarePipeline):
        assert int(inspect.signature(function).parameters["directions"].default) == DIRECTIONS, function
    for command in (sample, score):  # None means the default of the library, where a score needs directions
        assert command.DIRECTIONS == DIRECTIONS


@pytest.mark.parametrize(
    "command",
    ["train", "fit", "sample", "score", "filter", "evaluate", "check", "report", "info", "demo"],
)
def test_help_shows_an_example(tmp_path, command):
    assert f"flare {command}" in flare(command, "--help", cwd=tmp_path).stdout
