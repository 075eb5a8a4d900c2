"""`flare fit` with a network of one's own: what it assumes, what it refuses, what it warns of."""

from __future__ import annotations

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from running import call_here

import flare
from flare.cli.fit_choices import estimate_dense

NETS = """
import torch
from torch import nn
from flare import Denoiser
{backward}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x, t):
        time = t[:, None].to(x.dtype) / 20
        return self.out(torch.cat([x, time], dim=1))

class Timeless(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x)

class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x, t):
        return self.out(x)

class NoForwardMode(Net):
    def forward(self, x, t):
        return Backward.apply(super().forward(x, t))

def make():
    torch.manual_seed(0)
    return Net()

def predicts_v():
    return Denoiser(make(), "v")

def with_width(width):
    return Net()

def fails():
    raise FileNotFoundError("no weights at weights.pt")

network = make()
number = 3
"""
BACKWARD = """
class Backward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "nets.py").write_text(NETS.format(backward=BACKWARD))
    generator = np.random.default_rng(0)
    np.save(tmp_path / "train.npy", 0.5 * generator.normal(size=(60, 3)))
    np.save(tmp_path / "wide.npy", generator.normal(size=(60, 7)))
    np.save(tmp_path / "index.npy", np.column_stack([np.arange(60), generator.normal(size=(60, 3))]))
    np.save(tmp_path / "series.npy", generator.normal(size=(60, 5, 2)))
    monkeypatch.delitem(sys.modules, "nets", raising=False)

    return partial(call_here, monkeypatch, capsys)


def new(name, *more, model="nets:make", data="train.npy"):
    small = ["--pairs", 40, "--count", 5, "--prior", 1]
    return ["fit", name, "--model", model, *(["--data", data] if data else []), *small, *more]


def config(tmp_path, name="mine"):
    return json.loads((tmp_path / name / "config.json").read_text())


def test_a_new_run_says_what_it_assumes(run):
    code, _, said = run(*new("mine", "--levels", 20, "--no-check"))
    assert code == 0
    for fact in ("schedule cosine", "levels 20", "prediction epsilon", "clip 1.", "weighting uniform"):
        assert fact in said
    assert "The network receives an integer t in 0..19." in said
    _, _, said = run(*new("flow", "--schedule", "flow", "--prediction", "flow", "--no-check"))
    assert "levels 1000, prediction flow" in said
    assert "The network receives a number s in [0, 1]." in said
    _, _, again = run(*new("flow", "--no-check"))
    assert "new run" not in again


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_integers_are_refused_with_the_way_to_scale_them(run, tmp_path, suffix):
    pixels = np.random.default_rng(0).integers(0, 256, size=(60, 3)).astype(np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    np.savez(tmp_path / "pixels.npz", pixels)
    flare.checkpoint.save(tmp_path / "pixels.safetensors", {"x": torch.from_numpy(pixels)})
    code, _, said = run(*new("mine", data=f"pixels.{suffix}"))
    assert code == 2
    assert "must hold floating-point numbers, got" in said
    assert "uint8: scale them as in training" in said
    assert "x / 127.5 - 1" in said
    assert not (tmp_path / "mine").exists()
    code, _, said = run(*new("mine", "--held-out", f"pixels.{suffix}", "--no-check"))
    assert code == 2
    assert "uint8: scale them as in training" in said


def test_flags_that_disagree_with_the_run_are_refused_and_those_left_out_are_the_runs(run, tmp_path):
    run(
        *new(
            "mine", "--levels", 20, "--prediction", "v", "--clip", 2.0, "--weighting", "min_snr", "--no-check"
        )
    )
    before = config(tmp_path)
    code, out, _ = run(*new("mine", "--no-check", "--json", data=None))
    assert code == 0
    assert json.loads(out)["settings"] == {
        "schedule": "cosine", "levels": 20, "prediction": "v", "clip": 2.0, "weighting": "min_snr",
        "time": "an integer t in 0..19",
    }  # fmt: skip
    assert run(*new("mine", "--levels", 20, "--clip", 2, "--no-check"))[0] == 0
    written = (tmp_path / "mine" / "posterior.safetensors").read_bytes()
    np.save(tmp_path / "other.npy", np.ones((9, 3)))
    for flags, message in [
        (["--levels", 200], "--levels 200 (the run has 20)"),
        (["--schedule", "linear"], "--schedule linear (the run has cosine)"),
        (["--prediction", "epsilon"], "--prediction epsilon (the run has v)"),
        (["--clip", 1.5], "--clip 1.5 (the run has 2.0)"),
        (["--weighting", "uniform"], "--weighting uniform (the run has min_snr)"),
        (["--data", "other.npy"], "--data other.npy (the run has "),
        (["--model", "nets:Net"], "--model nets:Net (the run has nets:make)"),
    ]:
        code, _, said = run(*new("mine", *flags, "--no-check"))
        assert code == 2
        assert message in said
        assert "--overwrite" in said
    assert config(tmp_path) == before
    assert (tmp_path / "mine" / "posterior.safetensors").read_bytes() == written
    copied = np.load(tmp_path / "train.npy")
    np.save(tmp_path / "copy.npy", copied)
    assert run(*new("mine", "--no-check", data="copy.npy"))[0] == 0, "the same data under another name"


def test_overwrite_replaces_the_configuration_and_the_posterior(run, tmp_path):
    run(*new("mine", "--levels", 20, "--prediction", "v", "--no-check"))
    code, _, said = run(*new("mine", "--levels", 30, "--overwrite", "--no-check", data=None))
    assert code == 0, said
    assert "levels 30, prediction v" in said
    assert config(tmp_path)["schedule"]["T"] == 30
    posterior = flare.posteriors.load(tmp_path / "mine" / "posterior.safetensors")
    assert posterior.origin.schedule.T == 30
    np.save(tmp_path / "large.npy", np.full((30, 3), 9.0) * np.arange(30)[:, None] / 29)
    run(*new("mine", "--overwrite", "--no-check", data="large.npy"))
    assert config(tmp_path)["own"]["clip"] == pytest.approx(9)
    refused = run("fit", "sines", "--overwrite")[2]
    assert "name it with --model" in refused


def test_flags_of_a_shipped_model_are_checked_too(run):
    code, _, said = run("fit", "sines", "--levels", 200, "--out", "p.safetensors", "--no-check")
    assert code == 2
    assert "--levels 200 (the run has 600)" in said
    assert "--overwrite" not in said


def test_a_trained_run_is_not_overwritten(run, tmp_path):
    torch.manual_seed(0)
    run(
        "train",
        "--model",
        "nets:make",
        "--data",
        "train.npy",
        "--out",
        "own",
        "--levels",
        20,
        "--steps",
        2,
        "-q",
    )
    code, _, said = run(*new("own", "--levels", 30, "--overwrite"))
    assert code == 2
    assert "was trained with its configuration" in said
    assert config(tmp_path, "own")["schedule"]["T"] == 20


def test_a_denoiser_keeps_its_prediction_against_the_flag(run, tmp_path):
    code, _, said = run(*new("mine", "--prediction", "epsilon", model="nets:predicts_v"))
    assert code == 2
    assert "--prediction epsilon, but nets:predicts_v returns a Denoiser that predicts v" in said
    assert not (tmp_path / "mine" / "config.json").exists()


def test_a_model_that_does_not_fit_is_warned_of_and_fitted_all_the_same(run, tmp_path):
    code, out, said = run(*new("mine", "--levels", 20, "--json"))
    assert code == 0
    assert "warning: The network knows next to nothing of this data" in said
    assert "untrained weights" in said
    facts = json.loads(out)["model_check"]
    assert facts["problems"]
    assert len(facts["levels"]) == 12
    assert run(*new("mine", "--no-check", "--json"))[2] == ""


def test_a_shipped_model_is_not_warned_of(run):
    code, out, said = run("fit", "sines", "--count", 5, "--pairs", 50, "--out", "p.safetensors", "--json")
    assert code == 0
    assert "warning" not in said
    assert json.loads(out)["model_check"]["problems"] == []


@pytest.mark.parametrize(
    ("model", "data", "messages"),
    [
        ("nets:make", "wide.npy", ["Net failed on x of shape (2, 7)", "width of its first layer"]),
        ("nets:make", "index.npy", ["works on samples of shape (3,), and the data has (4,)", "an index?"]),
        ("nets:Series", "series.npy", ["works on samples of shape (2, 5)", "data.movedim(-1, 1)"]),
        ("nets:Timeless", "train.npy", ["must be called net(x, t)", "its forward(x) does not take"]),
        ("nets:with_width", "train.npy", ["callable without arguments", "with_width(width) needs some"]),
        ("nets:fails", "train.npy", ["calling fails() failed: FileNotFoundError: no weights at weights.pt"]),
        ("nets:number", "train.npy", ["must name a function that returns the network, got int"]),
        ("broken:make", "train.npy", ["importing broken failed: NameError: name 'nothing' is not defined"]),
        ("nets:absent", "train.npy", ["no attribute 'absent'"]),
    ],
)
def test_common_mistakes_with_a_network_of_ones_own(run, tmp_path, model, data, messages):
    (tmp_path / "broken.py").write_text("nothing\n")
    code, _, said = run(*new("mine", model=model, data=data))
    assert code == 2
    for message in messages:
        assert message in said
    assert not (tmp_path / "mine" / "config.json").exists()


def test_a_network_without_forward_mode_is_fitted_and_an_instance_is_taken(run):
    code, _, said = run(*new("mine", "--levels", 20, "--no-check", model="nets:NoForwardMode"))
    assert code == 0, said
    assert run(*new("other", "--levels", 20, "--no-check", model="nets:network"))[0] == 0


def write_table(path, values, names):
    np.savetxt(path, values, delimiter=",", header=",".join(names), comments="")


def test_columns_of_tables_are_matched_by_their_names(run, tmp_path):
    train = np.load(tmp_path / "train.npy")
    held = np.random.default_rng(1).normal(size=(40, 3)) * [0.1, 0.5, 2.0]
    for name, values, columns in (
        ("train", train, "abc"),
        ("held", held, "abc"),
        ("turned", held[:, ::-1], "cba"),
        ("other", held, ["a", "B", "c"]),
        ("numbered", held, ["x0", "x1", "x2"]),
    ):
        write_table(tmp_path / f"{name}.csv", values, columns)
    np.savetxt(tmp_path / "bare.csv", held, delimiter=",")
    told = "turned.csv has the columns of the training data in another order (c, b, a, not a, b, c)"

    def fit(name, held_out):
        flags = ["--levels", 20, "--no-check", "--held-out", held_out]
        return run(*new(name, *flags, data="train.csv"))

    assert told not in fit("mine", "held.csv")[2]
    assert told in fit("again", "turned.csv")[2]
    files = [f"{name}/posterior.reference.safetensors" for name in ("mine", "again")]
    for name in ("influence", "neighbors"):
        assert torch.equal(*(flare.Reference.load(file).scores[name] for file in files))
    code, _, said = fit("no", "other.csv")
    assert code == 2
    assert "other.csv must have the columns of the training data: b missing, B unknown" in said

    baseline = ["baseline", "denoising_error", "mine", "--samples"]
    for command in (["score", "mine"], ["score", "mine", "--score", "influence", "--samples"], baseline):
        found = {}
        for name in ("held", "turned", "numbered", "bare"):
            flags = ["--model", "nets:make", "--out", "s.npz", "--overwrite"]
            code, _, said = run(*command, f"{name}.csv", *flags)
            assert code == 0, said
            assert (told in said) == (name == "turned")
            found[name] = flare.Result.load(tmp_path / "s.npz")
        assert all(result == found["held"] for result in found.values())
        code, _, said = run(*command, "other.csv", "--model", "nets:make", "--out", "o.npz")
        assert code == 2
        assert "b missing, B unknown" in said


def test_a_scorer_remembers_the_columns_of_its_data(run, tmp_path):
    write_table(tmp_path / "train.csv", np.load(tmp_path / "train.npy"), "abc")
    run(*new("mine", "--levels", 20, "--no-check", data="train.csv"))
    write_table(tmp_path / "train.csv", np.load(tmp_path / "train.npy")[:, ::-1], "cba")  # later
    score = ["score", "mine", "train.csv", "--model", "nets:make", "--out", "s.npz"]
    assert "in another order (c, b, a, not a, b, c)" in run(*score)[2]
    import nets

    assert flare.load(tmp_path / "mine", nets.make()).about["columns"] == ["a", "b", "c"]


def test_a_posterior_of_another_schedule_is_refused_by_the_commands(run):
    run(*new("mine", "--levels", 20, "--no-check"))
    run(*new("other", "--levels", 30, "--no-check"))
    own = ["--model", "nets:make", "--posterior", "mine/posterior.safetensors"]
    code, _, said = run("sample", "other", *own, "-n", 3, "--out", "x.npz")
    assert code == 2
    assert "fitted for another schedule: cosine with T = 20" in said


def test_the_cost_of_a_dense_fit_is_known_before_it_starts(run, monkeypatch):
    told, operations = estimate_dense(1000, 2000, 10, 10**9)
    assert "dense over 1,000 parameters needs about 0.024 GB" in told
    assert operations == pytest.approx(2 * 8000 * 1e6 + 10 * 1e9)
    with pytest.raises(
        ValueError, match=r"126 GB .*, but 16 GB are free. Use --structure low_rank or diagonal"
    ):
        estimate_dense(72_496, 20_000, 80, 16 * 10**9)
    monkeypatch.setattr(sys.modules["flare.cli.fit_choices"], "WORTH_TELLING", 1)
    _, _, said = run(*new("mine", "--levels", 20, "--no-check"))
    assert "dense over 5 parameters needs about" in said
    monkeypatch.setattr("flare.core.memory.free_memory", lambda device: 100)
    code, _, said = run("fit", "sines", "--subset", "everything", "--out", "p.safetensors", "--no-check")
    assert code == 2
    assert "but 1e-07 GB are free" in said


def test_check_judges_the_score_in_use_and_says_what_to_change(run):
    run(*new("mine", "--levels", 20, "--prediction", "sample", "--no-check", "--scale", "calibrated"))
    run(*new("mine", "--no-check", "--prior", 1e-6, "--scale", 1e-6, "--out", "wild.safetensors"))
    check = ["check", "mine", "--model", "nets:make", "-n", 8, "--draws", 6, "--json"]
    facts = json.loads(run(*check)[1])
    assert facts["score"] == "expected_residual"
    assert json.loads(run(*check, "--score", "trace")[1])["score"] == "trace"
    code, out, _ = run(*check, "--posterior", "wild.safetensors")
    facts = json.loads(out)
    assert facts["score"] == "trace", "the default of flare sample for a posterior that is not calibrated"
    assert facts["trace_correlation"] == facts["correlation"]
    assert (facts["correlation"] or 0) < 0.9, "None if first order gives every sample the same score"
    assert code == 3
    assert "--rule monte_carlo" in facts["verdict"]
    assert "prior_precision" not in facts["verdict"]
    code, _, said = run(*check, "--score", "traces")
    assert code == 2
    assert "did you mean 'trace'" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--structure", "foo"], "unknown structure 'foo'"),
        (
            ["--prior", "marglick"],
            "--prior must be a positive number or 'marglik' or 'validation', got 'marglick'",
        ),
        (["--scale", "-1"], "--scale must be a positive number or 'calibrated', got '-1'"),
        (["--structure", "low_rank", "--truncation", "cov"], "unknown truncation 'cov'"),
        (["--truncation", "covariance"], "--truncation is for --structure low_rank, got dense"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_written(run, tmp_path, flags, message):
    code, _, said = run(*new("fresh", *flags))
    assert code == 2
    assert message in said
    assert not (tmp_path / "fresh").exists()


def test_errors_of_the_library_name_flags(run):
    run(*new("mine", "--levels", 20, "--no-check"))
    sample = ["sample", "mine", "--model", "nets:make", "-n", 3, "--out", "x.npz"]
    code, _, said = run(*sample, "--rule", "decoupled", "--sampler", "dpmpp_2m")
    assert code == 2
    assert "--rule tangent" in said
    code, _, also = run(*sample, "--rule", "monte_carlo", "--directions", 1)
    assert code == 2
    assert "--directions 2" in also
    assert "=" not in said + also


@pytest.mark.parametrize("structure", flare.posteriors.STRUCTURES)
def test_every_structure_is_fitted_with_its_defaults(run, structure):
    fit = ["fit", "runs/mine", "--model", "nets:make", "--data", "train.npy", "--levels", 20, "--no-check"]
    code, _, told = run(*fit, "--subset", "last_layer", "--structure", structure, "--pairs", 100)
    assert code == 0, told


@pytest.mark.parametrize("subset", ["random", "sensitive", "sketch"])
def test_subsets_by_name_are_fitted_and_used(run, subset):
    options = ["--subset", subset, "--count", 4, "--levels", 20, "--no-check", "--pairs", 100]
    assert run(*new("mine", *options))[0] == 0
    coordinates = flare.posteriors.load("mine/posterior.safetensors").subset
    assert (coordinates.size, coordinates.entry_count) == (4, 15 if subset == "sketch" else 4)
    sample = ["sample", "mine", "--model", "nets:make", "-n", 3, "--steps", 3, "--sampler", "ddim"]
    assert run(*sample)[0] == 0


@pytest.mark.parametrize("truncation", ["none", "curvature", "covariance"])
def test_a_truncated_posterior_is_fitted_and_used(run, truncation):
    low_rank = ["--structure", "low_rank", "--subset", "last_layer", "--rank", 3, "--truncation", truncation]
    assert run(*new("mine", "--levels", 20, "--no-check", *low_rank))[0] == 0
    posterior = flare.posteriors.load("mine/posterior.safetensors")
    assert posterior.truncation == truncation
    assert posterior.exact_directions().shape == (15, 15 if truncation == "none" else 3)
    sample = ["sample", "mine", "--model", "nets:make", "-n", 3, "--steps", 3, "--sampler", "ddim"]
    code, _, said = run(*sample, "--directions", 2, "--out", "x.npz")
    assert code == 0, said


def test_the_cost_of_a_covariance_truncation_is_that_of_a_dense_fit(run, monkeypatch):
    monkeypatch.setattr("flare.core.memory.free_memory", lambda device: 100)
    flags = ["--structure", "low_rank", "--truncation", "covariance", "--out", "p.safetensors", "--no-check"]
    code, _, said = run("fit", "sines", *flags)
    assert code == 2
    assert "are free. Use --truncation curvature, or fewer parameters" in said


@pytest.fixture
def pairs_of_a_fit(monkeypatch):
    """Record the training and validation pairs of every fit."""
    seen = []
    original = flare.posteriors.Structure.__call__

    def record(self, denoiser, subset, pairs, *args, **keywords):
        seen.append((pairs, keywords.get("validation")))
        return original(self, denoiser, subset, pairs, *args, **keywords)

    monkeypatch.setattr(flare.posteriors.Structure, "__call__", record)
    return seen


def rows(data):
    return {tuple(row) for row in data.tolist()}


def test_the_prior_is_validated_on_rows_that_the_curvature_leaves_out(run, tmp_path, pairs_of_a_fit):
    validate = ["--levels", 20, "--no-check", "--prior", "validation"]
    assert run(*new("mine", *validate))[0] == 0
    (training, validation) = pairs_of_a_fit[-1]
    assert (len(training.data), len(validation.data)) == (54, 6)
    assert not rows(training.data) & rows(validation.data)
    data = torch.as_tensor(np.load(tmp_path / "train.npy")).float()
    assert rows(training.data) | rows(validation.data) == rows(data)
    train, held_out = flare.noising.split(data, 0.1, seed=0)
    assert torch.equal(training.data, train), "Python users get the same split"
    assert torch.equal(validation.data, held_out)
    run(*new("mine", *validate, "--seed", 1))
    assert rows(pairs_of_a_fit[-1][1].data) != rows(held_out)
    run(*new("mine", "--no-check"))
    assert len(pairs_of_a_fit[-1][0].data) == 30, "the others are set aside, to compare with"


def test_held_out_data_of_a_file_leaves_the_training_data_whole(run, tmp_path, pairs_of_a_fit):
    fresh = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    np.save(tmp_path / "fresh.npy", fresh)
    validate = ["--levels", 20, "--no-check", "--prior", "validation", "--held-out"]
    assert run(*new("mine", *validate, "fresh.npy"))[0] == 0
    training, validation = pairs_of_a_fit[-1]
    assert len(training.data) == 60
    assert rows(validation.data) == rows(fresh)
    code, _, said = run(*new("mine", *validate, "wide.npy"))
    assert code == 2
    assert "wide.npy has samples of shape (7,), the model's are (3,)" in said


@pytest.mark.parametrize("more", [[], ["--held-out", "index.npy"]], ids=["split", "file"])
def test_a_matrix_free_posterior_finds_its_training_pairs_again(run, tmp_path, more):
    np.save(tmp_path / "index.npy", np.random.default_rng(1).normal(size=(8, 3)))
    free = ["--structure", "matrix_free", "--levels", 20, "--no-check", "--seed", 3]
    code, _, said = run(*new("mine", *free, "--prior", "validation", *more))
    assert code == 0, said
    sample = ["sample", "mine", "--model", "nets:make", "-n", 3, "--steps", 3, "--sampler", "ddim"]
    code, _, said = run(*sample, "--directions", 2, "--out", "x.npz")
    assert code == 0, said


def test_a_number_of_pairs_that_is_none_is_refused_by_its_flag(run):
    code, _, told = run("fit", "sines", "--pairs", 0, "--out", "x.safetensors")
    assert code == 2
    assert "--pairs must be an integer of at least 1, got 0" in told
