from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from reference import TinyNet

import flare
from flare.network.training import TrainConfig, Training, learning_rate_factor, save_losses, train
from flare.storage import checkpoint

SCHEDULE = flare.schedules.cosine(20)
CONFIG = TrainConfig(steps=30, batch_size=16, warmup=5, seed=3)


def training(config=CONFIG, data=None, prediction="epsilon"):
    torch.manual_seed(0)
    data = torch.randn(50, 4) * 0.3 if data is None else data
    return Training(TinyNet((4,)), data, SCHEDULE, config, prediction)


def finish(run, directory=None, stop=None, **options):
    for frame in train(run, directory, **options):
        if frame.step == stop:
            break
    return run


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path):
    whole = finish(training())
    finish(training(), tmp_path, stop=7)
    finish(training(), tmp_path, stop=19, save_every=4)
    resumed = training()
    assert [f.step for f in train(resumed, tmp_path)] == list(range(20, 31))
    assert torch.equal(resumed.losses, whole.losses)
    for name, value in whole.weights().items():
        assert torch.equal(resumed.weights()[name], value), name
    assert all(torch.equal(resumed.state()[k], v) for k, v in whole.state().items())


def test_the_state_of_another_version_is_refused(tmp_path):
    finish(training(), tmp_path, stop=7)
    state, metadata = checkpoint.load(tmp_path / "training.safetensors")
    checkpoint.save(tmp_path / "training.safetensors", state, {**metadata, "format": 2})
    with pytest.raises(ValueError, match="has format 2; this version of FLARE reads format 1"):
        train(training(), tmp_path)


def test_a_step_is_adamw_on_the_weighted_loss_written_plainly():
    config = TrainConfig(steps=3, batch_size=8, warmup=1, weight_decay=0.1, ema=0.5, clip_norm=1e9)
    run = training(config)
    twin = TinyNet((4,))
    twin.load_state_dict(run.net.state_dict())
    average = {k: v.clone() for k, v in twin.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=5e-4, weight_decay=0.1)
    for step in range(3):
        run.step()
        rows = torch.randint(50, (8,), generator=generator)
        level = torch.randint(20, (8,), generator=generator)
        noise = torch.randn(8, 4, generator=generator)
        loss = 0.0
        for i in range(8):
            alpha, sigma = SCHEDULE.alpha[level[i] + 1].item(), SCHEDULE.sigma[level[i] + 1].item()
            x = alpha * run.data[rows[i]] + sigma * noise[i]
            error = twin(x[None], level[i : i + 1])[0] - noise[i]
            snr = (alpha / sigma) ** 2
            loss = loss + min(snr, 5) / snr * (error**2).mean() / 8
        rate = 5e-4 * learning_rate_factor(step, 1, 3)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for k, v in twin.state_dict().items():
            average[k] = v.clone() if step == 0 else 0.5 * average[k] + 0.5 * v
        assert run.losses[step].item() == pytest.approx(loss.item(), rel=1e-5)
    for k, v in average.items():
        torch.testing.assert_close(run.weights()[k], v, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss_for_every_prediction():
    config = TrainConfig(steps=400, batch_size=64, warmup=10, learning_rate=5e-3)
    for prediction in ("epsilon", "sample", "v"):
        run = finish(training(config, prediction=prediction))
        assert run.losses[-50:].mean() < 0.7 * run.losses[:10].mean(), prediction


def test_training_draws_its_levels_as_configured():
    class Recording(TinyNet):
        def forward(self, x, t):
            self.seen.append(t)
            return super().forward(x, t)

    shares = {}
    for sampling in ("uniform", "log_snr"):
        net = Recording((4,))
        net.seen = []
        config = TrainConfig(steps=40, batch_size=100, level_sampling=sampling)
        finish(Training(net, torch.zeros(5, 4), SCHEDULE, config))
        log_snr = SCHEDULE.log_snr[torch.cat(net.seen)]
        shares[sampling] = (log_snr.abs() < 2).double().mean().item()
    # a normal with standard deviation 2 has 0.683 of its mass in |log-SNR| < 2, the 20 levels fewer
    inside = (SCHEDULE.log_snr.abs() < 2).double().mean().item()
    assert shares["uniform"] == pytest.approx(inside, abs=0.04)
    assert shares["log_snr"] == pytest.approx(math.erf(0.5**0.5), abs=0.08)


def test_uniform_levels_leave_the_description_of_earlier_versions():
    earlier = {"steps": 30, "batch_size": 16, "learning_rate": 5e-4, "warmup": 5, "weight_decay": 1e-4,
               "clip_norm": 1.0, "ema": 0.999, "weighting": "min_snr", "seed": 3}  # fmt: skip
    assert CONFIG.describe() == earlier
    assert TrainConfig(**earlier) == CONFIG
    other = replace(CONFIG, level_sampling="log_snr")
    assert other.describe() == {**earlier, "level_sampling": "log_snr"}
    assert TrainConfig(**other.describe()) == other


@pytest.mark.parametrize("decay", [0.999, 0.9999])
def test_the_average_is_the_exponential_moving_average(decay):
    run = training(replace(CONFIG, ema=decay, learning_rate=0.05))
    path = [[p.detach().double().clone() for p in run.net.parameters()] for _ in train(run)]
    last = len(path) - 1
    for i, averaged in enumerate(run.ema.module.parameters()):
        mean = decay**last * path[0][i]
        for step in range(1, last + 1):
            mean = mean + (1 - decay) * decay ** (last - step) * path[step][i]
        torch.testing.assert_close(averaged.detach().double(), mean, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(averaged.detach().double(), path[-1][i], rtol=1e-3, atol=1e-3)


def test_conditions_are_drawn_with_their_samples_and_answers_of_diffusers_are_read():
    class Labelled(TinyNet):
        def forward(self, x, t, label):
            return SimpleNamespace(sample=super().forward(x, t, shift=label))

    data = torch.arange(50.0)[:, None].expand(50, 4) / 100
    torch.manual_seed(0)
    run = Training(Labelled((4,)), data, SCHEDULE, CONFIG, cond={"label": data[:, 0]})
    batch = run.noiser.draw(run.data, 16, torch.Generator().manual_seed(1), run.cond)
    rows = torch.randint(50, (16,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(batch.cond["label"], data[rows, 0])
    first = run.step().loss
    with torch.no_grad():  # the same step, written plainly
        torch.manual_seed(0)
        net = Labelled((4,))
        drawn = run.noiser.draw(data, 16, torch.Generator().manual_seed(3), {"label": data[:, 0]})
        error = (net(drawn.x, drawn.t, drawn.cond["label"]).sample - drawn.target).square().mean(1)
    assert first == pytest.approx(float((drawn.weight * error).mean()), rel=1e-5)
    with pytest.raises(ValueError, match="one row per sample"):
        Training(Labelled((4,)), data, SCHEDULE, CONFIG, cond={"label": data[:3, 0]})


def test_the_rate_warms_up_and_falls_to_zero():
    factors = [learning_rate_factor(step, 10, 100) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[10] == 1
    assert factors[100] == pytest.approx(0, abs=1e-12)
    assert factors[55] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_the_loss_curve_is_averaged_not_thinned(tmp_path):
    save_losses(tmp_path / "loss.csv", torch.arange(250.0))
    rows = (tmp_path / "loss.csv").read_text().split()
    assert rows == ["step,loss", "100,49.5", "200,149.5", "250,224.5"]


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 5"):
        training(data=torch.tensor([[0.0], [1], [2], [math.nan], [4]]))
    with pytest.raises(ValueError, match="data is empty"):
        training(data=torch.zeros(0, 4))
    with pytest.raises(TypeError, match=r"call \.float\(\)"):
        training(data=torch.zeros(5, 4, dtype=torch.long))
    with pytest.raises(TypeError, match=r"torch\.as_tensor"):
        training(data=[[1.0]])
    with pytest.raises(ValueError, match="steps must be"):
        training(TrainConfig(steps=0))
    with pytest.raises(ValueError, match="did you mean 'min_snr'"):
        training(TrainConfig(steps=1, weighting="minsnr"))
    with pytest.raises(ValueError, match="did you mean 'log_snr'"):
        training(TrainConfig(steps=1, level_sampling="logsnr"))
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        finish(training(TrainConfig(steps=200, learning_rate=1e30, warmup=0)))
    finish(training(), tmp_path, stop=3)
    with pytest.raises(ValueError, match="has 30 steps, not 60"):
        finish(training(TrainConfig(steps=60, batch_size=16, warmup=5, seed=3)), tmp_path)
    other = Training(TinyNet((4,), width=8), torch.randn(9, 4), SCHEDULE, CONFIG)
    with pytest.raises(ValueError, match="the interrupted run does not fit TinyNet"):
        finish(other, tmp_path)
