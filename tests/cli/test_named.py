"""Schedules and samplers with options on the command line: EDM with its σ range, churn and time functions."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
import torch
from running import call_here

import flare
from flare.cli.models_in import make_sampler, parse_schedule
from flare.scorer.directory import read_main

NETS = """
import flare
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

def with_betas():
    betas = torch.linspace(5e-4, 0.1, 200)
    return make(), flare.schedules.from_betas(betas, time_scale=1 / 200)
"""
SCHEDULE = "edm:T=100,time=log_sigma,sigma_max=50,sigma_min=0.01,rho=5,training=-1/1.5"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "1000")
    (tmp_path / "edm_nets.py").write_text(NETS)
    np.save(tmp_path / "train.npy", 0.5 * np.random.default_rng(0).normal(size=(60, 3)))
    monkeypatch.delitem(sys.modules, "edm_nets", raising=False)

    return partial(call_here, monkeypatch, capsys)


def fit(model, *more):
    small = ["--pairs", 40, "--subset", 5, "--prior-precision", 1, "--no-check"]
    return ["fit", f"edm_nets:{model}", "--data", "train.npy", "--out", "mine", *small, *more]


def test_an_edm_model_from_fit_to_samples(run, tmp_path):
    code, _, said = run(*fit("make", "--schedule", SCHEDULE, "--prediction", "sample"))
    assert code == 0, said
    schedule = flare.schedules.edm(0.01, 50, 5, T=100, training=(-1, 1.5), time="log_sigma")
    assert read_main(tmp_path / "mine").schedule == dict(schedule.spec)
    denoiser = flare.Denoiser(sys.modules["edm_nets"].make(), "sample")
    clip = read_main(tmp_path / "mine").clip
    churn = flare.samplers.Churn(10, 0.05, 50, 1.003)
    drawn = {}
    for sampler, options in (("heun", {}), ("heun:churn=10/0.05/50/1.003", {"churn": churn})):
        code, _, said = run(
            "sample", "mine", "-n", 8, "--sampler", sampler, "--steps", 6, "--overwrite", "--out", "x.npz"
        )
        assert code == 0, said
        drawn[sampler] = flare.Result.load(tmp_path / "x.npz").samples
        steps = flare.samplers.heun(schedule, 6, clip=clip, **options)
        torch.testing.assert_close(drawn[sampler], flare.sample(denoiser, steps, n=8, shape=(3,)).samples)
    assert not torch.allclose(*drawn.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("edm:sigma_maxx=5", "did you mean 'sigma_max'"),
        ("edm:sigma_max", "takes options as edm:option=value"),
        ("edm:sigma_max=", "takes options as edm:option=value"),
        ("cosine", "--schedule cosine lacks the number of noise levels: write cosine:T=1000"),
        ("cosine:max_beta=0.9", "write cosine:max_beta=0.9,T=1000"),
        ("cosine:T=many", "T must be an integer|cannot be made"),
        ("cosine:spec=5", "unknown option of --schedule cosine 'spec'"),
        ("cosin:T=9", "did you mean 'cosine'"),
        ("from_betas", "let the function of MODEL return"),
        ("betas.npy", "let the function of MODEL return"),
        ("from_betas:betas=betas.npy", "let the function of MODEL return"),
    ],
)
def test_wrong_options_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(text)


def test_wrong_options_of_a_sampler_are_named():
    schedule = flare.schedules.cosine(20)
    with pytest.raises(ValueError, match="did you mean 'eta'"):
        make_sampler("ddim:et=1", schedule, 5, None)
    with pytest.raises(ValueError, match=r"--sampler ddim takes no n=; give --steps 1 instead"):
        make_sampler("ddim:n=1", schedule, 5, None)
    with pytest.raises(ValueError, match=r"--sampler ddim:eta=much cannot be made"):
        make_sampler("ddim:eta=much", schedule, 5, None)
    with pytest.raises(ValueError, match="churn needs amount"):
        make_sampler("heun:churn=-1", flare.schedules.edm(), 5, None)


def test_a_sampler_with_options_is_that_of_the_library():
    schedule = flare.schedules.cosine(20)
    named = make_sampler("ddim:eta=1,use_clipped=false", schedule, 5, 2.0)
    assert named == flare.samplers.ddim(schedule, 5, 1, clip=2.0, use_clipped=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cosine:T=20", lambda: flare.schedules.cosine(20)),
        ("cosine:T=20,max_beta=0.99,time=fraction", lambda: flare.schedules.cosine(20, 0.99, "fraction")),
        ("flow:T=20,shift=3", lambda: flare.schedules.flow(20, shift=3)),
        ("edm:rho=5,T=20,time_scale=0.5", lambda: flare.schedules.edm(rho=5, T=20, time_scale=0.5)),
    ],
)
def test_a_schedule_with_options_is_that_of_the_library(text, expected):
    assert dict(parse_schedule(text).spec) == dict(expected().spec)


def test_betas_of_the_user_come_with_the_network(run, tmp_path):
    code, _, said = run(*fit("with_betas", "--prediction", "v"))
    assert code == 0, said
    stored = read_main(tmp_path / "mine")
    betas = torch.linspace(5e-4, 0.1, 200, dtype=torch.float64)
    assert stored.schedule["betas"] == pytest.approx(betas.tolist(), rel=1e-6)
    assert stored.prediction == "v"
    assert run("sample", "mine", "-n", 4, "--steps", 3, "-q", "--model", "edm_nets:with_betas")[0] == 0
    assert len(flare.Result.load(tmp_path / "samples.safetensors")) == 4
