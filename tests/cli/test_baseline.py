"""`flare baseline` gives the numbers of the library's functions, in files that the other commands read."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from running import flare, interrupt_sampling, interrupt_training
from typer.testing import CliRunner

import flare as library
from flare import Result
from flare.bench import baselines
from flare.bench.baselines import BASELINES, hyperdm
from flare.cli import app

DDIM = ["--sampler", "ddim", "--steps", 6]
N = 30


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with three small runs of sines, and samples of the first."""
    home = tmp_path_factory.mktemp("home")
    for seed in range(3):
        flare(
            "train", "sines", "--out", f"run{seed}", "--steps", 60, "--batch-size", 64, "--seed", seed, "-q",
            cwd=home,
        )  # fmt: skip
    np.save(home / "x.npy", library.bench.datasets.make("sines", N, seed=3))
    np.save(home / "real.npy", library.bench.datasets.make("sines", 80, seed=5))
    return home


@pytest.fixture(autouse=True)
def no_earlier_output(home):
    """What an earlier test wrote without --out would be refused."""
    (home / "baseline.safetensors").unlink(missing_ok=True)


class Library:
    """The runs of `home`, as the library sees them."""

    def __init__(self, home):
        self.home = home
        self.runs = [library.bench.load(home / f"run{seed}") for seed in range(3)]
        self.model = self.runs[0]
        self.denoiser = self.model.denoiser
        self.steps = library.samplers.ddim(self.model.schedule, 6, clip=self.model.clip)
        self.pairs = library.noising.pairs(
            self.model.data, self.model.schedule, n=300, seed=4, weighting=self.model.weighting
        )
        self.options = {"n": N, "shape": self.model.shape, "seed": 4}

    def last_layer(self):
        return library.subsets.last_layer(self.denoiser)

    def llla(self):
        posterior = baselines.llla(self.denoiser, self.pairs)
        return library.sample(
            self.denoiser, self.steps, posterior, rule="decoupled", directions=5, **self.options
        )

    def bayesdiff(self):
        posterior = library.posteriors.diagonal(
            self.denoiser, self.last_layer(), self.pairs, 1.0, 5000.0, curvature="fisher"
        )
        return baselines.bayesdiff(
            self.denoiser, self.steps, posterior, draws=3, every=2, directions=5, **self.options
        )

    def generative(self):
        posterior = library.posteriors.dense(
            self.denoiser, self.last_layer(), self.pairs, "marglik", "calibrated"
        )
        return baselines.generative(self.denoiser, self.steps, posterior, models=2, **self.options)

    def ensemble(self):
        return baselines.ensemble([run.denoiser for run in self.runs], self.steps, **self.options)

    def last_iterates(self):
        return baselines.last_iterates(self.denoiser, self.steps, last=[2, 4], **self.options)

    def residual(self):
        x = library.bench.datasets.make("sines", N, seed=3)
        values = baselines.residual(self.denoiser, self.model.schedule, x, level=0.2)
        return Result(x, scores={"residual": values})

    def denoising_error(self):
        x = library.bench.datasets.make("sines", N, seed=3)
        values = baselines.denoising_error(
            self.denoiser, self.model.schedule, x, levels=[0.1, 0.3], repeats=2, seed=4
        )
        return Result(x, scores={"denoising_error": values})

    def aleatoric(self):
        return baselines.aleatoric(self.denoiser, self.steps, draws=3, last=[4], **self.options)

    def flipd(self):
        x = library.bench.datasets.make("sines", N, seed=3)
        values = baselines.flipd(self.denoiser, self.model.schedule, x, level=0.2, probes=4, seed=4)
        return Result(x, scores={"flipd": values})

    def compare(self, name, *network, **options):
        x = library.bench.datasets.make("sines", N, seed=3)
        real = torch.from_numpy(np.load(self.home / "real.npy"))  # all of them: in the same order
        values = getattr(baselines, name)(*network, x, real, seed=4, **options)
        return Result(x, scores={name: values})

    def msma(self):
        return self.compare("msma", self.denoiser, self.model.schedule, levels=[0.1, 0.3], density="knn")

    def ddpm_ood(self):
        clip = self.model.clip
        return self.compare(
            "ddpm_ood", self.denoiser, self.model.schedule, levels=[0.2, 0.6], calls=3, clip=clip
        )

    def diffpath(self):
        return self.compare("diffpath", self.denoiser, self.model.schedule, dimensions=1, calls=4)

    def gradient_norms(self):
        return self.compare("gradient_norms", self.denoiser, self.model.schedule, levels=[0.4], repeats=2)

    def realism(self):
        return self.compare("realism", neighbors=2)

    def density(self):
        return self.compare("density", neighbors=4)


COMPARED = ["run0", "--samples", "x.npy", "--data", "real.npy"]
FLAGS = {
    "llla": ["run0", "-n", N, "--pairs", 300, "--directions", 5],
    "bayesdiff": ["run0", "-n", N, "--pairs", 300, "--directions", 5, "--draws", 3, "--every", 2],
    "generative": ["run0", "-n", N, "--pairs", 300, "--models", 2],
    "ensemble": ["run0", "run1", "run2", "-n", N],
    "last_iterates": ["run0", "-n", N, "--last", "2,4"],
    "aleatoric": ["run0", "-n", N, "--draws", 3, "--last", 4],
    "residual": ["run0", "--samples", "x.npy", "--level", 0.2],
    "denoising_error": ["run0", "--samples", "x.npy", "--levels", "0.1,0.3", "--repeats", 2],
    "flipd": ["run0", "--samples", "x.npy", "--level", 0.2, "--probes", 4],
    "msma": [*COMPARED, "--levels", "0.1,0.3", "--density", "knn"],
    "ddpm_ood": [*COMPARED, "--levels", "0.2,0.6", "--calls", 3],
    "diffpath": [*COMPARED, "--dimensions", 1, "--calls", 4],
    "gradient_norms": [*COMPARED, "--levels", 0.4, "--repeats", 2],
    "realism": [*COMPARED, "--neighbors", 2],
    "density": [*COMPARED, "--neighbors", 4],
}


def check_same(found: Result, expected: Result) -> None:
    assert list(found.scores) == list(expected.scores)
    torch.testing.assert_close(found.samples, expected.samples, rtol=1e-4, atol=1e-5)
    for name, score in expected.scores.items():
        torch.testing.assert_close(found.scores[name], score, rtol=2e-3, atol=1e-6)


def test_every_baseline_is_tested():
    assert {*FLAGS, "hyperdm"} == set(BASELINES)


@pytest.mark.parametrize("name", FLAGS)
def test_the_command_gives_the_numbers_of_the_library(home, name):
    file = f"{name}.safetensors"
    told = flare(
        "baseline", name, *FLAGS[name], *DDIM, "--seed", 4, "--batch-size", 12, "--out", file, "--json",
        cwd=home,
    )  # fmt: skip
    facts = json.loads(told.stdout)
    assert (facts["n"], facts["baseline"]) == (N, name)
    found = Result.load(home / file)
    assert found.about["baseline"] == name
    check_same(found, getattr(Library(home), name)())


def test_bayesdiff_as_released_and_epistemic_only(home):
    own = Library(home)
    ddpm = library.samplers.ddpm(own.model.schedule, 6, clip=own.model.clip)
    posterior = BASELINES["bayesdiff"].fit(own.denoiser, own.pairs)
    for flags, options in (
        (["--variant", "released"], {"variant": "released"}),
        (["--epistemic"], {"total": False}),
    ):
        flare(
            "baseline", "bayesdiff", "run0", "-n", 8, "--pairs", 300, "--directions", 5, "--seed", 4,
            "--steps", 6, *flags, "-q", "--overwrite", cwd=home,
        )  # fmt: skip
        expected = baselines.bayesdiff(
            own.denoiser, ddpm, posterior, 8, own.model.shape, directions=5, seed=4, **options
        )
        check_same(Result.load(home / "baseline.safetensors"), expected)


def test_a_given_posterior_is_used(home):
    flare("fit", "run0", "--count", 40, "--pairs", 200, "--out", "p.safetensors", "-q", cwd=home)
    run = ["baseline", "llla", "run0", "-n", 6, *DDIM, "--posterior", "p.safetensors", "--rule", "tangent"]
    flare(*run, "--out", "given.npz", "-q", cwd=home)
    own = Library(home)
    posterior = library.posteriors.load(home / "p.safetensors")
    expected = library.sample(own.denoiser, own.steps, posterior, 6, own.model.shape, rule="tangent")
    check_same(Result.load(home / "given.npz"), expected)


def test_hyperdm_trains_resumes_loads_and_gives_the_numbers_of_the_library(home):
    run = ["baseline", "hyperdm", "run0", "-n", 8, *DDIM, "--models", 3, "--seed", 4, "-q"]
    new = [*run, "--train-steps", 30]
    told = flare(*new, "--out", "a.npz", cwd=home, stop=interrupt_training, code=130).stderr
    assert "the same command resumes it" in told
    flare(*new, "--out", "a.npz", cwd=home)
    assert not list((home / "run0").glob(".hyper*")), "checkpoints are cleared away"
    flare(*new, "--hypernetwork", "whole.safetensors", "--out", "b.npz", cwd=home)
    check_same(Result.load(home / "a.npz"), Result.load(home / "b.npz"))

    flare(*run, "--repeats", 2, "--out", "c.npz", cwd=home)  # the trained one
    own = Library(home)
    hyper = hyperdm.load(home / "run0" / "hypernetwork.safetensors", own.denoiser.module)
    expected = hyperdm.sample(
        hyperdm.members(hyper, 3, seed=4), own.steps, 8, own.model.shape, repeats=2, seed=4
    )
    check_same(Result.load(home / "c.npz"), expected)

    other = flare(*run, "--train-steps", 31, cwd=home, code=2).stderr
    assert "was trained for 30 steps, not for 31. Leave out --train-steps" in other
    file = str(home / "run0" / "hypernetwork.safetensors")
    wrong = flare("baseline", "hyperdm", "grid", "--hypernetwork", file, cwd=home, code=2).stderr
    assert "is the hypernetwork of another network" in wrong
    shipped = flare("baseline", "hyperdm", "grid", cwd=home, code=2).stderr
    assert "say where its hypernetwork is, or is to be written, with --hypernetwork FILE" in shipped


def test_an_interrupted_baseline_resumes(home):
    run = ["baseline", "ensemble", "run0", "run1", "-n", 12, *DDIM, "-q", "--batch-size", 3]
    flare(*run, "--out", "stopped.safetensors", cwd=home, stop=interrupt_sampling, code=130)
    parts = list((home / ".stopped.safetensors.parts").rglob("*.safetensors"))
    assert parts
    flare(*run, "--out", "stopped.safetensors", cwd=home)
    flare(*run, "--out", "whole.npz", cwd=home)
    check_same(Result.load(home / "stopped.safetensors"), Result.load(home / "whole.npz"))


def test_filter_report_evaluate_and_info_read_the_file(home):
    flare("baseline", "last_iterates", "run0", "-n", 60, *DDIM, "--out", "read.safetensors", "-q", cwd=home)
    kept = json.loads(flare("filter", "read.safetensors", "--keep", 0.5, "--json", cwd=home).stdout)
    assert kept["n"] == 30
    flare("report", "read.safetensors", "--out", "page.html", cwd=home)
    assert json.loads(flare("info", "read.safetensors", "--json", cwd=home).stdout)["n"] == 60
    np.save(home / "judged.npy", library.bench.datasets.make("sines", 50, seed=8))
    found = json.loads(
        flare(
            "evaluate", "read.safetensors", "--data", "judged.npy", "--score", "last_100", "--judge",
            "logistic", "--json", cwd=home,
        ).stdout
    )  # fmt: skip
    result = Result.load(home / "read.safetensors")
    mask = library.keep_fraction(result.scores["last_100"], 0.5)
    real = torch.from_numpy(np.load(home / "judged.npy"))
    for reading in library.evaluation.discriminator.READINGS:
        gap = library.evaluation.discriminator.measure_filter(
            real, result.samples, mask, reading=reading, by="logistic"
        )
        assert found["judge_accuracy_all"] == pytest.approx(gap.accuracy_unfiltered)
        assert found["judge_auc_all"] == pytest.approx(gap.auc_unfiltered)
        assert found[f"{reading}_auc"] == pytest.approx(gap.auc)
        assert found[f"{reading}_gap_closure"] == pytest.approx(gap.gap_closure)
        assert found[f"{reading}_p_value"] == pytest.approx(gap.p_value)
        assert f"{reading}_gap_closure_of_a_random_filter" in found


def test_a_judge_without_scikit_learn_says_what_to_install(tmp_path, monkeypatch):
    x = library.bench.datasets.make("grid", 60, seed=0)
    Result(x, scores={"mine": x[:, 0]}).save(tmp_path / "x.npz")
    monkeypatch.setitem(sys.modules, "sklearn.pipeline", None)
    evaluate = ["evaluate", str(tmp_path / "x.npz"), "--data", str(tmp_path / "x.npz"), "--judge"]
    told = CliRunner().invoke(app, [*evaluate, "network"]).exception
    assert isinstance(told, ValueError)
    assert "--judge network: a judge needs scikit-learn: pip install scikit-learn" in str(told)
    assert "did you mean 'logistic'" in str(CliRunner().invoke(app, [*evaluate, "logistik"]).exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bayesdif", "run0"], "did you mean 'bayesdiff'"),
        (["bayesdiff", "run0", "--variant", "old"], "unknown variant 'old'"),
        (["ensemble", "run0"], "ensemble needs at least 2 runs, got 1: run0"),
        (["llla", "run0", "run1"], "llla needs one run, got 2: run0, run1"),
        (["ensemble", "run0", "grid"], "the runs must have the same shape and schedule, got sines with"),
        (
            ["llla", "run0", "--draws", "3"],
            "--draws cannot be used with llla, which has --rule, --directions",
        ),
        (
            ["ensemble", "run0", "run1", "--epistemic"],
            "--epistemic cannot be used with ensemble, which has no",
        ),
        (["residual", "run0"], "residual scores existing samples: name their file with --samples"),
        (["residual", "run0", "--samples", "x.npy", "-n", "5"], "leave out -n"),
        (["msma", "run0"], "msma scores existing samples: name their file with --samples"),
        (["residual", "run0", "--samples", "x.npy", "--real", "9"], "--real cannot be used with residual"),
        (["density", "run0", "--samples", "x.npy", "--real", "0"], "--real must be an integer of at least 1"),
        (["density", "run0", "--samples", "x.npy", "--real", "5"], "needs at least 6 real samples, got 5"),
        (["last_iterates", "run0", "--last", "5,x"], "--last must be positive integers with commas"),
        (["llla", "run0", "--samples", "x.npy"], "--samples cannot be used with llla, which needs posterior"),
        (["llla", "run0", "--train-steps", "5"], "--train-steps cannot be used with llla"),
        (["llla", "run0", "-n", "0"], "-n must be an integer of at least 1"),
    ],
)
def test_bad_input_is_refused(home, arguments, message):
    assert message in flare("baseline", *arguments, cwd=home, code=2).stderr.replace("\n", " ")
