"""`flare bench` trains, gives the numbers of the library's baselines, and measures filters."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from running import flare, interrupt_sampling, interrupt_training

import flare as library
from flare import Result
from flare.bench import baselines, oracles, tasks
from flare.bench.baselines import BASELINES
from flare.cli import bench as declared
from flare.core.noise_streams import REAL_STREAM, mix_seed
from flare.diffusion.noising import LEVEL_SAMPLINGS
from flare.storage import checkpoint

DDIM = ["--sampler", "ddim", "--steps", 6]
N = 30


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with three small runs of sines, and samples of the first."""
    home = tmp_path_factory.mktemp("home")
    for seed in range(3):
        flare(
            "bench", "train", "sines", "--out", f"run{seed}", "--steps", 60, "--batch-size", 64, "--seed",
            seed, "-q", cwd=home,
        )  # fmt: skip
    np.save(home / "x.npy", library.bench.datasets.make("sines", N, seed=3))
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

    def aleatoric(self):
        return baselines.aleatoric(self.denoiser, self.steps, draws=3, last=[4], **self.options)

    def detect(self, name, *network, **options):
        """The scores of existing samples, compared with 80 training samples if the method compares."""
        x = library.bench.datasets.make("sines", N, seed=3)
        entry = BASELINES[name]
        detector = entry.run(*network, **options)
        if entry.needs == "real data":
            generator = torch.Generator().manual_seed(mix_seed(4, REAL_STREAM))
            rows = torch.randperm(len(self.model.data), generator=generator)[:80].sort().values
            detector.fit(self.model.data[rows], seed=4)
        return Result(x, scores={name: detector.score(x, seed=4)})

    def residual(self):
        return self.detect("residual", self.denoiser, self.model.schedule, level=0.2)

    def denoising_error(self):
        options = {"levels": [0.1, 0.3], "repeats": 2}
        return self.detect("denoising_error", self.denoiser, self.model.schedule, **options)

    def flipd(self):
        return self.detect("flipd", self.denoiser, self.model.schedule, level=0.2, probes=4)

    def msma(self):
        options = {"levels": [0.1, 0.3], "components": 2}
        return self.detect("msma", self.denoiser, self.model.schedule, **options)

    def ddpm_ood(self):
        options = {"levels": [0.2, 0.6], "calls": 3, "clip": self.model.clip}
        return self.detect("ddpm_ood", self.denoiser, self.model.schedule, **options)

    def diffpath(self):
        return self.detect("diffpath", self.denoiser, self.model.schedule, dimensions=1, calls=4)

    def gradient_norms(self):
        return self.detect("gradient_norms", self.denoiser, self.model.schedule, levels=0.4, repeats=2)

    def sharpness(self):
        return self.detect("sharpness", self.denoiser, self.model.schedule, levels=[0.1, 0.3], probes=2)

    def instability(self):
        return self.detect("instability", self.denoiser, self.model.schedule, levels=[0.1, 0.3], probes=2)

    def eigenscore(self):
        return self.detect("eigenscore", self.denoiser, self.model.schedule, levels=0.3, count=1)

    def scoped(self):
        return self.detect("scoped", self.denoiser, self.model.schedule, levels=0.3, probes=2)

    def rods(self):
        return baselines.rods(self.denoiser, self.steps, **self.options)

    def realism(self):
        return self.detect("realism", neighbors=2)

    def density(self):
        return self.detect("density", neighbors=4)


SCORED = ["run0", "--samples", "x.npy"]
COMPARED = [*SCORED, "--real", 80]
POSTERIOR = ["run0", "-n", N, "--pairs", 300]
# the model and flags of each baseline, and its options
FLAGS = {
    "llla": (POSTERIOR, ["directions=5"]),
    "bayesdiff": (POSTERIOR, ["directions=5", "draws=3", "every=2"]),
    "generative": (POSTERIOR, ["models=2"]),
    "ensemble": (["run0", "run1", "run2", "-n", N], []),
    "last_iterates": (["run0", "-n", N], ["last=2,4"]),
    "aleatoric": (["run0", "-n", N], ["draws=3", "last=4"]),
    "residual": (SCORED, ["level=0.2"]),
    "denoising_error": (SCORED, ["levels=0.1,0.3", "repeats=2"]),
    "flipd": (SCORED, ["level=0.2", "probes=4"]),
    "msma": (COMPARED, ["levels=0.1,0.3", "components=2"]),
    "ddpm_ood": (COMPARED, ["levels=0.2,0.6", "calls=3"]),
    "diffpath": (COMPARED, ["dimensions=1", "calls=4"]),
    "gradient_norms": (COMPARED, ["levels=0.4", "repeats=2"]),
    "sharpness": (SCORED, ["levels=0.1,0.3", "probes=2"]),
    "instability": (SCORED, ["levels=0.1,0.3", "probes=2"]),
    "eigenscore": (SCORED, ["levels=0.3", "count=1"]),
    "scoped": (COMPARED, ["levels=0.3", "probes=2"]),
    "rods": (["run0", "-n", N], []),
    "realism": (COMPARED, ["neighbors=2"]),
    "density": (COMPARED, ["neighbors=4"]),
}


def with_options(texts):
    return [word for text in texts for word in ("--option", text)]


def check_same(found: Result, expected: Result) -> None:
    assert list(found.scores) == list(expected.scores)
    torch.testing.assert_close(found.samples, expected.samples, rtol=1e-4, atol=1e-5)
    for name, score in expected.scores.items():
        torch.testing.assert_close(found.scores[name], score, rtol=2e-3, atol=1e-6)


def test_every_baseline_is_tested():
    assert set(FLAGS) == set(BASELINES)


@pytest.mark.parametrize("name", FLAGS)
def test_the_command_gives_the_numbers_of_the_library(home, name):
    file = f"{name}.safetensors"
    told = flare(
        "bench", "baseline", name, *FLAGS[name][0], *with_options(FLAGS[name][1]), *DDIM, "--seed", 4,
        "--batch-size", 12, "--out", file, "--json", cwd=home,
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
    for option, options in (("variant=released", {"variant": "released"}), ("total=false", {"total": False})):
        flare(
            "bench", "baseline", "bayesdiff", "run0", "-n", 8, "--pairs", 300, "--seed", 4, "--steps", 6,
            *with_options(["directions=5", option]), "-q", "--overwrite", cwd=home,
        )  # fmt: skip
        expected = baselines.bayesdiff(
            own.denoiser, ddpm, posterior, 8, own.model.shape, directions=5, seed=4, **options
        )
        check_same(Result.load(home / "baseline.safetensors"), expected)


def test_an_interrupted_baseline_resumes(home):
    run = ["bench", "baseline", "ensemble", "run0", "run1", "-n", 12, *DDIM, "-q", "--batch-size", 3]
    flare(*run, "--out", "stopped.safetensors", cwd=home, stop=interrupt_sampling, code=130)
    parts = list((home / ".stopped.safetensors.parts").rglob("*.safetensors"))
    assert parts
    flare(*run, "--out", "stopped.safetensors", cwd=home)
    flare(*run, "--out", "whole.npz", cwd=home)
    check_same(Result.load(home / "stopped.safetensors"), Result.load(home / "whole.npz"))


def test_evaluate_reads_the_file(home):
    flare("bench", "baseline", "last_iterates", "run0", "-n", 60, *DDIM, "--out", "by.npz", "-q", cwd=home)
    np.save(home / "judged.npy", library.bench.datasets.make("sines", 50, seed=8))
    evaluate = ["bench", "evaluate", "by.npz", "--json", "--score", "last_100"]
    found = json.loads(flare(*evaluate, "--data", "judged.npy", cwd=home).stdout)
    result = Result.load(home / "by.npz")
    score, real = result.scores["last_100"], torch.from_numpy(np.load(home / "judged.npy"))
    kept = score <= score.kthvalue(30).values
    assert (found["score"], found["n"], found["kept"]) == ("last_100", 60, 30)
    distance = library.bench.metrics.energy_distance(result.samples[kept], real)
    assert found["energy_distance_filtered"] == pytest.approx(distance)
    by_truth = json.loads(flare(*evaluate, "--truth", "sines", cwd=home).stdout)
    bad = oracles.find_hallucinations("sines", result.samples, library.bench.datasets.make("sines", 5_000, 1))
    assert by_truth["hallucination_rate"] == pytest.approx(bad.double().mean().item())
    assert by_truth["after_the_filter"] == pytest.approx(bad[kept].double().mean().item())


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
    listed = {
        declared.TRUTHS: oracles.BENCHMARKS,
        declared.BASELINES: BASELINES,
        declared.LEVEL_SAMPLINGS: LEVEL_SAMPLINGS,
        declared.STORED: tasks.STORED,
    }
    for text, names in listed.items():
        assert text == ", ".join(sorted(names))
    assert ", ".join(tasks.GROUPS) == declared.GROUPS
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
        (["baseline", "bayesdif", "run0"], "did you mean 'bayesdiff'"),
        (["baseline", "bayesdiff", "run0", "--option", "variant=old"], "unknown variant 'old'"),
        (["baseline", "bayesdiff", "run0", "--option", "draw=3"], "unknown option of bayesdiff 'draw'; did"),
        (["baseline", "bayesdiff", "run0", "--option", "draws"], "--option must be key=value, such as draws"),
        (["baseline", "bayesdiff", "run0", "--option", "draws=few"], "--option draws takes numbers, such as"),
        (["baseline", "bayesdiff", "run0", "--option", "total=1"], "--option total takes true or false, got"),
        (["baseline", "bayesdiff", "run0", "--option", "draws=true"], "--option draws takes numbers, such"),
        (["baseline", "ensemble", "run0"], "ensemble needs at least 2 models, got 1: run0"),
        (["baseline", "llla", "run0", "run1"], "llla needs one model, got 2: run0, run1"),
        (["baseline", "ensemble", "run0", "grid"], "must have the same shape and schedule, got sines with"),
        (
            ["baseline", "ensemble", "run0", "run1", "--option", "a=1"],
            "--option a cannot be used with ensemb",
        ),
        (
            ["baseline", "residual", "run0"],
            "residual scores existing samples: name their file with --samples",
        ),
        (["baseline", "residual", "run0", "--samples", "x.npy", "-n", "5"], "leave out -n"),
        (["baseline", "msma", "run0"], "msma scores existing samples: name their file with --samples"),
        (
            ["baseline", "residual", "grid", "--samples", "x.npy"],
            "x.npy has samples of shape (10,); the model's are (2,)",
        ),
        (["baseline", "density", *SCORED, "--real", "0"], "Invalid value for '--real'"),
        (["baseline", "density", *SCORED, "--real", "5"], "needs at least 6 real samples, got 5"),
        (["baseline", "last_iterates", "run0", "--option", "last=5,x"], "--option last takes numbers"),
        (
            ["baseline", "llla", "run0", "--samples", "x.npy"],
            "--samples cannot be used with llla, which need",
        ),
        (["baseline", "llla", "run0", "-n", "0"], "Invalid value for '-n'"),
        (["baseline", "llla", "nowhere/run"], "no run directory at nowhere/run; give its path, or one of"),
        (["train", "sine", "--out", "x"], "did you mean 'sines'"),
        (["train", "sines", "--out", "x.npy"], "x.npy exists and is not a run directory"),
        (["train", "sines", "--out", "full", "--overwrite"], "full exists and is not a run directory"),
        (["train", "sines", "--out", "full"], "full exists and is not a run directory: choose another --out"),
        (["train", "sines", "--out", "x", "--steps", "0"], "--steps must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--samples", "0"], "Invalid value for '--samples'"),
        (["train", "sines", "--out", "x", "--weighting", "snr"], "unknown weighting 'snr'"),
        (["train", "sines", "--out", "x", "--level-sampling", "snr"], "unknown level sampling 'snr'"),
        (["evaluate", "r.npz"], "give --truth NAME for a benchmark, or --data FILE with held-out data"),
        (["evaluate", "r.npz", "--truth", "grids"], "did you mean 'grid'"),
        (["evaluate", "r.npz", "--truth", "grid"], "grid has samples of shape (2,), r.npz has (10,)"),
        (["evaluate", "r.npz", "--truth", "sines", "--keep", "50"], "--keep must be a fraction in (0, 1]"),
        (["evaluate", "r.npz", "--truth", "sines", "--keep", "0.01"], "--keep 0.01 keeps 1 of the 60"),
        (["evaluate", "r.npz", "--truth", "sines", "--score", "last"], "unknown score of r.npz 'last'; did"),
        (["evaluate", "nothing.npz", "--truth", "sines"], "nothing.npz"),
    ],
)
def test_bad_input_is_refused(home, arguments, message):
    (home / "full").mkdir(exist_ok=True)
    (home / "full" / "mine.txt").touch()
    if not (home / "r.npz").exists():
        x = library.bench.datasets.make("sines", 60, seed=3)
        Result(x, scores={"last_10": x[:, 0]}).save(home / "r.npz")
    assert message in flare("bench", *arguments, cwd=home, code=2).stderr.replace("\n", " ")
