"""Schedules and samplers with options on the command line: EDM with its σ range, churn and time functions."""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from running import call_here

import flare
from flare.cli.named import describe_schedule, make_sampler, parse_schedule

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x, t):
        return self.out(torch.cat([x, t[:, None].to(x.dtype)], dim=1))

def make():
    torch.manual_seed(0)
    return Net()
"""
PAIRS = """
import flare
import torch
from edm_nets import make

def with_betas():
    betas = torch.linspace(5e-4, 0.1, 200)
    return make(), flare.schedules.from_betas(betas, time_scale=1 / 200)

def a_list():
    return [make()]
"""
SCHEDULE = "edm:time=log_sigma,sigma_max=50,sigma_min=0.01,rho=5,training=-1/1.5"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "edm_nets.py").write_text(NETS)
    (tmp_path / "edm_pairs.py").write_text(PAIRS)
    np.save(tmp_path / "train.npy", 0.5 * np.random.default_rng(0).normal(size=(60, 3)))
    for name in ("edm_nets", "edm_pairs"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    return partial(call_here, monkeypatch, capsys)


def fit(*more):
    small = ["--pairs", 40, "--count", 5, "--prior", 1, "--no-check", "--levels", 100]
    own = ["--model", "edm_nets:make", "--prediction", "sample"]
    return ["fit", "mine", *own, *small, *more]


def test_an_edm_model_from_fit_to_samples(run, tmp_path):
    code, _, said = run(*fit("--data", "train.npy", "--schedule", SCHEDULE))
    assert code == 0, said
    assert "schedule edm:sigma_min=0.01,sigma_max=50,rho=5,training=-1/1.5,time=log_sigma" in said
    stored = json.loads((tmp_path / "mine" / "config.json").read_text())["schedule"]
    schedule = flare.schedules.edm(0.01, 50, 5, T=100, training=(-1, 1.5), time="log_sigma")
    assert flare.schedules.Summary.of(flare.schedules.build(stored)).agrees(
        flare.schedules.Summary.of(schedule)
    )

    drawn = {}
    for name, sampler in (("plain", "heun"), ("churned", "heun:churn=10/0.05/50/1.003")):
        code, _, said = run(
            "sample", "mine", "--model", "edm_nets:make", "-n", 8, "--sampler", sampler, "--steps", 6,
            "--clip", "none", "--out", f"{name}.safetensors",
        )  # fmt: skip
        assert code == 0, said
        drawn[name] = flare.Result.load(tmp_path / f"{name}.safetensors")
        assert drawn[name].p_value.shape == (8,)
    denoiser = flare.Denoiser(sys.modules["edm_nets"].make(), "sample")
    churn = flare.samplers.Churn(10, 0.05, 50, 1.003)
    for name, options in (("plain", {}), ("churned", {"churn": churn})):
        steps = flare.samplers.heun(schedule, 6, **options)
        expected = flare.sample(denoiser, steps, n=8, shape=(3,)).samples
        torch.testing.assert_close(drawn[name].samples, expected)
    assert not torch.allclose(drawn["plain"].samples, drawn["churned"].samples)


def test_a_run_keeps_its_options_and_refuses_others(run, tmp_path):
    assert run(*fit("--data", "train.npy", "--schedule", SCHEDULE))[0] == 0
    again = "edm:rho=5,sigma_min=0.01,sigma_max=50.0,training=-1/1.5,time=log_sigma"  # in another order
    assert run(*fit("--schedule", again))[0] == 0
    code, _, said = run(*fit("--schedule", "edm:sigma_max=50"))
    assert code != 0
    assert "--schedule edm:sigma_max=50 (the run has edm:sigma_min=0.01,sigma_max=50,rho=5," in said
    assert run(*fit("--overwrite", "--weighting", "min_snr"))[0] == 0
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert config["schedule"]["sigma_max"] == 50
    assert config["schedule"]["time"] == "log_sigma"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("edm:sigma_maxx=5", "did you mean 'sigma_max'"),
        ("edm:sigma_max", "takes options as edm:option=value"),
        ("edm:sigma_max=", "takes options as edm:option=value"),
        ("edm:T=5", "--schedule edm takes no T=; give --levels 5 instead"),
        ("cosine:spec=5", "unknown option of --schedule cosine 'spec'"),
        ("cosin", "did you mean 'cosine'"),
    ],
)
def test_wrong_options_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(text, 10)


def test_wrong_options_of_a_sampler_are_named():
    schedule = flare.schedules.cosine(20)
    with pytest.raises(ValueError, match="did you mean 'eta'"):
        make_sampler("ddim:et=1", schedule, 5, None)
    with pytest.raises(ValueError, match=r"--sampler ddim takes no clip=; give --clip 1 instead"):
        make_sampler("ddim:clip=1", schedule, 5, None)
    with pytest.raises(ValueError, match=r"--sampler ddim:eta=much cannot be made"):
        make_sampler("ddim:eta=much", schedule, 5, None)
    with pytest.raises(ValueError, match="churn needs amount"):
        make_sampler("heun:churn=-1", flare.schedules.edm(), 5, None)


def test_a_sampler_with_options_is_that_of_the_library():
    schedule = flare.schedules.cosine(20)
    named = make_sampler("ddim:eta=1,use_clipped=false,spacing=leading", schedule, 5, 2.0)
    assert named == flare.samplers.ddim(schedule, 5, 1, clip=2.0, use_clipped=False, spacing="leading")


@pytest.mark.parametrize(
    "text", ["cosine", "cosine:max_beta=0.99,time=fraction", "flow:shift=3", "edm:rho=5,time_scale=0.5"]
)
def test_a_description_reads_back_as_the_same_schedule(text):
    spec = parse_schedule(text, 20)
    built = flare.schedules.build(spec)
    described = describe_schedule(built.spec)
    assert sorted(described.replace(":", ",").split(",")) == sorted(text.replace(":", ",").split(","))
    assert dict(flare.schedules.build(parse_schedule(described, 20)).spec) == dict(built.spec)
    assert describe_schedule({}) == "its own"


def test_a_network_may_bring_its_schedule_along(run, tmp_path):
    model = ["--model", "edm_pairs:with_betas", "--data", "train.npy"]
    small = ["--pairs", 40, "--count", 5, "--prior", 1, "--no-check", "--prediction", "v_prediction"]
    code, _, said = run("fit", "run", *model, *small)
    assert code == 0, said
    assert "a number from 0 to 0.995" in said
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    betas = torch.linspace(5e-4, 0.1, 200, dtype=torch.float64)
    assert config["schedule"]["betas"] == pytest.approx(betas.tolist(), rel=1e-6)
    assert config["own"]["prediction"] == "v"
    assert run("sample", "run", *model[:2], "-n", 4, "--steps", 3, "-q")[0] == 0
    assert len(flare.Result.load(tmp_path / "samples.safetensors")) == 4
    assert run("fit", "run", *model, *small, "--overwrite")[0] == 0
    code, _, said = run("fit", "other", *model, *small, "--schedule", "cosine", "--levels", 100)
    assert code == 2
    assert "edm_pairs:with_betas brings its own schedule: leave out --schedule and --levels" in said
    code, _, said = run("fit", "other", "--model", "edm_pairs:a_list", "--data", "train.npy")
    assert code == 2
    assert "must return a torch.nn.Module, a flare.Denoiser, a pair of one of these and a schedule" in said


@pytest.mark.filterwarnings("ignore:prior_precision was tuned")
def test_a_scorer_saved_in_python_is_used_on_the_command_line(run, tmp_path):
    data = torch.from_numpy(np.load(tmp_path / "train.npy")).float()
    net, schedule = importlib.import_module("edm_pairs").with_betas()
    scorer = flare.fit(net, data, schedule, subset=5, pairs=40, check=False)
    scorer.save(tmp_path / "scorer")
    model = ["--model", "edm_pairs:with_betas"]
    code, _, said = run("score", "scorer", "train.npy", *model, "--out", "scored.safetensors")
    assert code == 0, said
    found = flare.Result.load(tmp_path / "scored.safetensors")
    torch.testing.assert_close(found.p_value, scorer.score(data).p_value)
    assert run("sample", "scorer", *model, "-n", 4, "--steps", 3)[0] == 0
    code, _, said = run("score", "scorer", "train.npy", "--out", "other.safetensors")
    assert code == 2
    assert "scorer is a scorer: name its network with --model" in said
    code, out, _ = run("info", "scorer", "--json")
    assert (code, json.loads(out)["kind"], json.loads(out)["training_size"]) == (0, "scorer", 30)
    code, _, said = run("fit", "scorer", *model, "--data", "train.npy")
    assert code == 2
    assert "is a scorer that is fitted already" in said
    scorer.save(tmp_path / "private", data=False)
    code, _, said = run("score", "private", "train.npy", *model, "--out", "other.safetensors")
    assert code == 2
    assert "was saved without training data" in said


@pytest.mark.parametrize("schedule", ["from_betas", "betas.npy", "from_betas:betas=betas.npy"])
def test_betas_of_the_user_come_with_the_network(run, schedule):
    code, _, said = run(*fit("--data", "train.npy", "--schedule", schedule))
    assert code == 2
    assert "let the function of --model return (network, flare.schedules.from_betas(betas))" in said
