"""`flare fit` with your own network: what it needs, what it refuses, what it warns of."""

from __future__ import annotations

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from running import call_here

import flare
from flare.scorer.directory import read_main
from flare.storage import checkpoint

NETS = """
import torch
from torch import nn
from flare import Denoiser, Model, schedules
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

def with_schedule():
    return make(), schedules.cosine(20)

def a_model():
    return Model(make(), schedules.cosine(20), "v")

def a_list():
    return [make()]

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


def new(out, *more, model="nets:make", data="train.npy", schedule="cosine:T=20"):
    small = ["--pairs", 40, "--subset", 5, "--prior-precision", 1]
    levels = ["--schedule", schedule] if schedule else []
    return ["fit", model, *(["--data", data] if data else []), *levels, "--out", out, *small, *more]


def test_a_scorer_is_that_of_the_library_and_remembers_its_network(run, tmp_path):
    code, out, said = run(*new("mine", "--no-check", "--json"))
    assert (code, said) == (0, "")
    facts = json.loads(out)
    assert facts["parameters"] == 5
    assert facts["compared_with"].startswith("30 samples set aside from the training data")
    assert read_main(tmp_path / "mine").source == "nets:make"
    import nets

    data = torch.from_numpy(np.load(tmp_path / "train.npy")).float()
    schedule = flare.schedules.cosine(20)
    expected = flare.fit(
        nets.make(), data, schedule, pairs=40, subset=5, prior_precision=1.0, check=False
    ).sample(6, steps=4)
    code, _, said = run("sample", "mine", "-n", 6, "--steps", 4, "--out", "drawn.npz")
    assert code == 0, said
    assert "importing nets:make, the network that mine was fitted to." in said
    found = flare.Result.load(tmp_path / "drawn.npz")
    torch.testing.assert_close(found.samples, expected.samples)
    torch.testing.assert_close(found.p_value, expected.p_value)
    assert torch.equal(found.regions, expected.regions)


@pytest.mark.parametrize("model", ["nets:with_schedule", "nets:a_model"])
def test_a_function_may_bring_the_schedule_along(run, model):
    assert run(*new("mine", "--no-check", model=model, schedule=None))[0] == 0
    code, _, said = run("sample", "mine", "-n", 3, "--steps", 3)
    assert code == 0, said


def test_another_model_replaces_the_one_that_is_remembered(run, tmp_path):
    assert run(*new("mine", "--no-check"))[0] == 0
    (tmp_path / "moved.py").write_text((tmp_path / "nets.py").read_text())
    (tmp_path / "nets.py").unlink()
    sys.modules.pop("nets")
    code, _, said = run("sample", "mine", "-n", 3, "--steps", 3)
    assert code == 2
    assert "nets:make: No module named 'nets'" in said
    code, _, said = run("sample", "mine", "-n", 3, "--steps", 3, "--model", "moved:make")
    assert code == 0, said
    assert "importing" not in said
    sys.modules.pop("moved")


def test_a_scorer_that_was_saved_in_python_needs_its_model(run, tmp_path):
    import nets

    data = torch.from_numpy(np.load(tmp_path / "train.npy")).float()
    scorer = flare.fit(
        nets.make(), data, flare.schedules.cosine(20), pairs=40, subset=5, prior_precision=1.0, check=False
    )
    scorer.save(tmp_path / "scorer")
    code, _, said = run("score", "scorer", "train.npy", "--out", "s.npz")
    assert code == 2
    assert "scorer does not record its network: name it with --model, package.module:function" in said
    code, _, said = run("score", "scorer", "train.npy", "--out", "s.npz", "--model", "nets:make")
    assert code == 0, said
    torch.testing.assert_close(flare.Result.load(tmp_path / "s.npz").p_value, scorer.score(data).p_value)


def test_noise_levels_and_data_must_be_given(run, tmp_path):
    code, _, said = run(*new("mine", schedule=None))
    assert code == 2
    assert "nets:make is a network without its noise levels" in said
    assert "--schedule cosine:T=1000" in said
    code, _, said = run(*new("mine", data=None))
    assert code == 2
    assert "nets:make comes without data: give its training data with --data FILE" in said
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_integers_are_refused_with_the_way_to_scale_them(run, tmp_path, suffix):
    pixels = np.random.default_rng(0).integers(0, 256, size=(60, 3)).astype(np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    np.savez(tmp_path / "pixels.npz", pixels)
    checkpoint.save(tmp_path / "pixels.safetensors", {"x": torch.from_numpy(pixels)})
    for arguments in (new("mine", data=f"pixels.{suffix}"), new("mine", "--held-out", f"pixels.{suffix}")):
        code, _, said = run(*arguments)
        assert code == 2
        assert "must hold floating-point numbers, got" in said
        assert "uint8: scale them as in training" in said
        assert "x / 127.5 - 1" in said
    assert not (tmp_path / "mine").exists()


def test_a_scorer_is_replaced_only_on_request(run, tmp_path):
    assert run(*new("mine", "--no-check"))[0] == 0
    before = (tmp_path / "mine" / "posterior.safetensors").read_bytes()
    code, _, said = run(*new("mine", "--no-check", "--seed", 1))
    assert code == 2
    assert "mine is a scorer: choose another --out, or replace it with --overwrite." in said
    assert (tmp_path / "mine" / "posterior.safetensors").read_bytes() == before
    code, _, said = run(*new("mine", "--no-check", "--overwrite", schedule="cosine:T=30"))
    assert code == 0, said
    assert flare.posteriors.load(tmp_path / "mine" / "posterior.safetensors").origin.schedule.T == 30
    assert sorted(path.name for path in tmp_path.glob(".mine*")) == []


def test_a_denoiser_keeps_its_prediction_against_the_flag(run, tmp_path):
    code, _, said = run(*new("mine", "--prediction", "epsilon", model="nets:predicts_v"))
    assert code == 2
    assert "the denoiser predicts v, got --prediction epsilon; leave it out" in said
    assert not (tmp_path / "mine").exists()


def test_a_model_that_does_not_fit_is_warned_of_and_fitted_all_the_same(run):
    code, out, said = run(*new("mine", "--json"))
    assert code == 0
    assert "do not trust this scorer yet: The network has learned next to nothing of this data" in said
    assert "untrained weights" in said
    assert json.loads(out)["problems"]
    code, _, said = run("sample", "mine", "-n", 3, "--steps", 3)
    assert "warning: do not trust these p-values yet: The network has learned next to nothing" in said


def test_a_problem_of_the_sampler_is_told_to_those_who_draw_with_it(run, tmp_path):
    assert run("fit", "sines", "--subset", 5, "--pairs", 50, "--no-check", "--out", "mine", "-q")[0] == 0
    scorer = flare.load(tmp_path / "mine", flare.bench.load("sines"))
    scorer.about.update({"problems": ["DDIM is at fault."], "limited": {"DDIM is at fault.": ["ddim", 10]}})
    scorer.save(tmp_path / "mine")
    warning = "do not trust these p-values yet: DDIM is at fault."
    np.save(tmp_path / "few.npy", np.zeros((3, 10), dtype=np.float32))
    for command, is_told in (
        (("sample", "mine", "--model", "sines", "-n", 3, "--steps", 5), True),
        (("sample", "mine", "--model", "sines", "-n", 3, "--steps", 10), False),
        (("sample", "mine", "--model", "sines", "-n", 3, "--steps", 5, "--sampler", "ddpm"), False),
        (("score", "mine", "few.npy", "--model", "sines"), False),
    ):
        code, _, said = run(*command, "--overwrite", "--out", "out.npz")
        assert code == 0, said
        assert said.count(warning) == is_told, command


def test_a_shipped_model_is_not_warned_of_and_has_its_own_data(run, tmp_path):
    code, out, said = run("fit", "sines", "--subset", 5, "--pairs", 50, "--out", "p", "--json")
    assert (code, said) == (0, "")
    assert "problems" not in json.loads(out)
    assert (read_main(tmp_path / "p").source, read_main(tmp_path / "p").about["training_size"]) == (
        "sines",
        4500,
    )


@pytest.mark.parametrize(
    ("model", "data", "messages"),
    [
        ("nets:make", "wide.npy", ["Net failed on x of shape (2, 7)", "width of its first layer"]),
        ("nets:make", "index.npy", ["works on samples of shape (3,), and the data has (4,)", "an index?"]),
        ("nets:Series", "series.npy", ["works on samples of shape (2, 5)", "data.movedim(-1, 1)"]),
        ("nets:Timeless", "train.npy", ["must be called net(x, t)", "its forward(x) does not take"]),
        (
            "nets:with_width",
            "train.npy",
            ["calling with_width() failed: TypeError", "missing 1 required"],
        ),
        ("nets:fails", "train.npy", ["calling fails() failed: FileNotFoundError: no weights at weights.pt"]),
        ("nets:number", "train.npy", ["calling number() failed: TypeError: 'int' object is not callable"]),
        ("nets:a_list", "train.npy", ["must return a torch.nn.Module, a flare.Denoiser", "got list"]),
        ("broken:make", "train.npy", ["importing broken failed: NameError: name 'nothing' is not defined"]),
        ("nets:absent", "train.npy", ["nets:absent: nets has no 'absent'; it is read from", "nets.py"]),
    ],
)
def test_common_mistakes_with_your_own_network(run, tmp_path, model, data, messages):
    (tmp_path / "broken.py").write_text("nothing\n")
    code, _, said = run(*new("mine", model=model, data=data))
    assert code == 2
    for message in messages:
        assert message in said
    assert not (tmp_path / "mine").exists()


def test_a_network_without_forward_mode_is_fitted_and_an_instance_is_taken(run):
    code, _, said = run(*new("mine", "--no-check", model="nets:NoForwardMode"))
    assert code == 0, said
    assert run(*new("other", "--no-check", model="nets:network"))[0] == 0


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
    told = "turned.csv has the columns of the training data in a different order (c, b, a, not a, b, c)"

    def fit(name, held_out):
        return run(*new(name, "--no-check", "--held-out", held_out, data="train.csv"))

    assert told not in fit("mine", "held.csv")[2]
    assert told in fit("again", "turned.csv")[2]
    files = [f"{name}/reference.safetensors" for name in ("mine", "again")]
    for name in ("neighbors", "activations", "epistemic_distance"):
        assert torch.equal(*(flare.Reference.load(file).scores[name] for file in files))
    code, _, said = fit("no", "other.csv")
    assert code == 2
    assert "other.csv must have the columns of the training data: b missing, B unknown" in said

    (tmp_path / "train.csv").unlink()  # the scorer remembers the columns
    found = {}
    for name in ("held", "turned", "numbered", "bare"):
        code, _, said = run("score", "mine", f"{name}.csv", "--out", "s.npz", "--overwrite")
        assert code == 0, said
        assert (told in said) == (name == "turned")
        found[name] = flare.Result.load(tmp_path / "s.npz")
    assert all(result == found["held"] for result in found.values())
    code, _, said = run("score", "mine", "other.csv", "--out", "o.npz")
    assert code == 2
    assert "b missing, B unknown" in said
    assert read_main(tmp_path / "mine").about["columns"] == ["a", "b", "c"]


def test_check_says_what_to_change(run):
    wild = ["--prior-precision", 1e-6, "--scale", 1e-6]
    assert run(*new("wild", "--no-check", "--prediction", "sample", *wild))[0] == 0
    code, out, _ = run("check", "wild", "-n", 8, "--draws", 6, "--steps", 10, "--json")
    facts = json.loads(out)
    assert code == 3
    assert (facts["correlation"] or 0) < 0.9, "None if first order gives every sample the same score"
    assert "--rule monte_carlo" in facts["problems"][-1]
    assert "prior_precision" not in facts["checked"]


def test_errors_of_the_library_name_flags(run):
    run(*new("mine", "--no-check"))
    sample = ["sample", "mine", "-n", 3, "--steps", 4, "--out", "x.npz"]
    code, _, said = run(*sample, "--rule", "decoupled", "--sampler", "dpmpp_2m", "--directions", 2)
    assert code == 2
    assert "--rule tangent" in said
    code, _, also = run(*sample, "--rule", "monte_carlo", "--directions", 1)
    assert code == 2
    assert "--directions 2" in also
    assert "=" not in said + also


@pytest.mark.parametrize("structure", list(flare.posteriors.STRUCTURES))
def test_every_structure_is_fitted_and_used(run, structure):
    fit = ["fit", "nets:with_schedule", "--data", "train.npy", "--no-check", "--out", "mine"]
    rank = ["--rank", 3] if structure == "low_rank" else []
    code, _, told = run(*fit, "--subset", "last_layer", "--structure", structure, "--pairs", 100, *rank)
    assert code == 0, told
    code, _, told = run("sample", "mine", "-n", 3, "--steps", 3, "--directions", 2)
    assert code == 0, told


@pytest.mark.parametrize(("subset", "size"), [("4", 4), ("everything", 15), ("out.w*", 12)])
def test_subsets_are_a_number_a_name_or_patterns(run, subset, size):
    assert run(*new("mine", "--no-check", "--subset", subset))[0] == 0
    assert flare.posteriors.load("mine/posterior.safetensors").subset.size == size


def test_the_prior_is_validated_on_held_out_data(run, tmp_path):
    np.save(tmp_path / "fresh.npy", np.random.default_rng(1).normal(size=(30, 3)).astype(np.float32))
    validate = ["--no-check", "--prior-precision", "validation", "--json"]
    found = [json.loads(run(*new("a", *validate))[1])]
    found.append(json.loads(run(*new("b", *validate, "--held-out", "fresh.npy"))[1]))
    assert found[1]["compared_with"] == "30 held-out samples"
    assert found[0]["compared_with"].startswith("30 samples set aside")


def test_a_scorer_without_data_judges_by_features_of_the_network(run, tmp_path):
    _, out, _ = run(*new("private", "--no-check", "--no-data", "--json"))
    assert json.loads(out)["kept_training_samples"] == 0
    assert not list((tmp_path / "private").glob("data*"))
    assert run("sample", "private", "-n", 4, "--steps", 4, "-q", "--out", "private.npz")[0] == 0
    found = flare.Result.load(tmp_path / "private.npz")
    assert list(found.scores) == ["activations", "epistemic_distance"]
    assert set(found.reason) <= set(found.scores)
    assert found.verdict.copies is None


def test_the_commands_take_a_pipeline_directory_and_folders_of_images(run, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    net = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(32,), layers_per_block=1,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    )  # fmt: skip
    diffusers.DDPMPipeline(net, diffusers.DDPMScheduler(50)).save_pretrained(tmp_path / "pipe")
    for name, count in (("images", 40), ("fresh", 20)):
        (tmp_path / name).mkdir()
        for i in range(count):
            pixels = torch.randint(256, (8, 8, 3), dtype=torch.uint8).numpy()  # the network takes gray ones
            Image.fromarray(pixels).save(tmp_path / name / f"{i:02}.png")
    options = ("--held-out", "fresh", "--no-check")
    code, _, said = run(*new("mine", *options, model="pipe", data="images", schedule=None))
    assert code == 0, said
    assert read_main(tmp_path / "mine").source == str(tmp_path / "pipe")
    code, _, said = run("score", "mine", "images", "--out", "scored.npz")
    assert code == 0, said
    scored = flare.Result.load(tmp_path / "scored.npz")
    assert scored.p_value.shape == (40,)
    assert float(scored.samples.min()) >= -1
    code, _, said = run("sample", "mine", "-n", 3, "--steps", 10, "--out", "drawn.npz")
    assert code == 0, said
    model = flare.from_diffusers(tmp_path / "pipe")
    own = flare.sample(model.denoiser, model.steps(10), n=3, shape=(1, 8, 8))
    drawn = flare.Result.load(tmp_path / "drawn.npz").samples
    assert torch.allclose(drawn, own.samples, atol=1e-5), "its own scheduler, DDPM, draws"
    assert not torch.allclose(drawn, flare.sample(
        model.denoiser, flare.samplers.ddim(model.schedule, 10, clip=1.0), n=3, shape=(1, 8, 8)
    ).samples, atol=1e-2)  # fmt: skip
