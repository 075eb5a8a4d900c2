from __future__ import annotations

import json
import shutil

import pytest
import torch

import flare
from flare import bench
from flare.bench.shipped import _SHIPPED, CONFIG_FILE, WEIGHTS_FILE


@pytest.mark.parametrize(
    ("name", "width", "count", "head"),
    [
        ("grid", 32, 7_810, 66),
        ("sines", 32, 8_330, 330),
        ("sines", 16, 4_218, 170),
        ("chirp", 128, 72_496, 10_320),
        ("damped", 128, 62_216, 5_160),
    ],
)
def test_parameter_counts_are_those_of_the_paper(name, width, count, head):
    net, _ = bench.build(bench.configure(name, width=width, samples=9))
    assert sum(p.numel() for p in net.parameters()) == count
    assert sum(p.numel() for p in net.out.parameters()) == head


@pytest.mark.parametrize("name", bench.NAMES)
def test_shipped_models_load_in_one_line(name):
    model = bench.load(name)
    assert model.name == name
    assert model.data.shape[1:] == model.shape
    assert model.clip == pytest.approx(model.data.abs().max().item(), abs=1e-4)
    assert isinstance(model, flare.Model)
    assert (model.source, model.sampler("ddpm").name, model.steps(7).name) == (name, "ddpm", "ddim")
    assert len(model.sampler("ddpm")) == model.schedule.T == {"grid": 800, "shapes": 1000}.get(name, 600)
    assert model.config == bench.configure(name), "the shipped model is what `flare bench train NAME` makes"
    x, t = model.data[:4], torch.arange(4)
    assert model.denoiser(x, t).isfinite().all()


def test_the_shipped_grid_model_samples_the_grid():
    """A quick look; `make quality` measures all four models on 10,000 samples."""
    model = bench.load("grid")
    x = flare.sample(model.denoiser, model.sampler("ddpm", 100), n=1000, shape=model.shape).samples
    distance, mode = torch.cdist(x, bench.datasets.GRID_CENTERS).min(1)
    assert (distance > 0.2).float().mean() < 0.05
    assert mode.bincount(minlength=9).min() > 60


def test_the_shipped_digits_model_is_small_and_its_samples_look_like_digits():
    model = bench.load("digits")
    files = (_SHIPPED / "digits").iterdir()
    assert sum(file.stat().st_size for file in files) < 1e6
    assert model.denoiser.parameter_count == 142_889
    x = flare.sample(model.denoiser, model.sampler("ddim", 20), n=100, shape=model.shape).samples
    held_out = bench.datasets.digits(1797)[bench.datasets.TRAINING_DIGITS :]
    own, real = (torch.cdist(part.flatten(1), model.data.flatten(1)) for part in (x, held_out))
    assert own.min(1).values.median() < 1.3 * real.min(1).values.median() < 0.8 * real.median()


def test_some_samples_of_the_shipped_shapes_break_the_rule_and_most_do_not():
    """`flare demo` shows which."""
    model = bench.load("shapes")
    assert sum(file.stat().st_size for file in (_SHIPPED / "shapes").iterdir()) < 3e6
    steps = model.steps(50, use_clipped=False)
    x = flare.sample(model.denoiser, steps, n=40, shape=model.shape).samples
    assert 0.02 < bench.shapes.bad(x).double().mean() < 0.5


def test_the_time_feature_is_the_standardized_log_snr():
    schedule = flare.schedules.linear(50)
    feature = bench.ScoreNet(3, 8, schedule).feature.double()
    assert feature.mean().item() == pytest.approx(0, abs=1e-6)
    assert feature.std().item() == pytest.approx(1, abs=1e-6)
    correlation = torch.corrcoef(torch.stack([feature, schedule.log_snr]))[0, 1]
    assert correlation.item() == pytest.approx(1, abs=1e-6)


def test_building_does_not_touch_the_global_generator():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    bench.build(bench.configure("sines", samples=4))
    assert torch.equal(torch.randn(3), expected)


@pytest.fixture
def run(tmp_path):
    shutil.copytree(_SHIPPED / "sines", tmp_path / "run")
    return tmp_path / "run"


def test_a_saved_model_comes_back(tmp_path, run):
    model = bench.load(run)
    bench.save(tmp_path / "again", model.config, model.denoiser.params)
    again = bench.load(tmp_path / "again")
    assert all(torch.equal(again.denoiser.params[k], v) for k, v in model.denoiser.params.items())


def test_bad_runs_are_named(tmp_path, run):
    with pytest.raises(ValueError, match="did you mean 'sines'"):
        bench.load("sinus")
    with pytest.raises(FileNotFoundError, match="no run directory at"):
        bench.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="did you mean 'steps'"):
        bench.configure("sines", step=3)

    config = json.loads((run / CONFIG_FILE).read_text())
    (run / CONFIG_FILE).write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(ValueError, match=r"format must be 1, .* got 99"):
        bench.load(run)
    (run / CONFIG_FILE).write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match=r"prediction must be what the network predicts, .* got None"):
        bench.load(run)
    (run / CONFIG_FILE).write_text("[1")
    with pytest.raises(ValueError, match="not a JSON file"):
        bench.load(run)
    config["network"]["width"] = 16
    (run / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not fit ScoreNet"):
        bench.load(run)
    (run / WEIGHTS_FILE).unlink()
    with pytest.raises(FileNotFoundError, match=r"not a finished run\. Train it with `flare bench train"):
        bench.load(run)


def test_the_network_of_the_authors_code():
    config = bench.configure("chirp", samples=4, network={"n_blocks": 0, "released": True})
    net, _ = bench.build(config)
    assert sum(parameter.numel() for parameter in net.parameters()) == 22_064
    x, t = torch.randn(3, 80, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 5, 9])
    assert net(x, t).abs().max() == 0  # the last layer starts at zero

    net, _ = bench.build(bench.configure("grid", samples=4, network={"released": True}))
    block, time = net.blocks[0], torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    h = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    scale, shift = block.film(time).split(32, dim=1)
    y = block.linear(block.norm(h))
    assert torch.allclose(block(h, time), h + (1 + scale) * (y * torch.sigmoid(y)) + shift, atol=1e-6)


def test_network_options_are_those_of_the_papers_network():
    with pytest.raises(ValueError, match="unknown network option 'blocks'; did you mean 'n_blocks'"):
        bench.configure("chirp", samples=4, network={"blocks": 0})
    with pytest.raises(ValueError, match="unknown network option 'n_blocks'"):
        bench.configure("digits", samples=4, network={"n_blocks": 0})
