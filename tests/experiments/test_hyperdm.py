"""A hypernetwork trains, resumes, and makes models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flare
from experiments import hyperdm
from flare.network.training import TrainConfig, Training, train

SCHEDULE = flare.schedules.cosine(20)


def test_a_hypernetwork_trains_resumes_and_makes_models(tmp_path):
    data = flare.bench.datasets.make("sines", 200)

    def training():
        torch.manual_seed(0)
        net = flare.network.scorenet.ScoreNet(10, 8, SCHEDULE)
        hyper = hyperdm.HyperNetwork(net, width=4, seed=1)
        return hyper, Training(hyper, data, SCHEDULE, TrainConfig(steps=60, warmup=5, batch_size=64))

    hyper, whole = training()
    torch.manual_seed(5)  # the state of the global generator does not matter
    again = hyperdm.HyperNetwork(hyper._net[0], width=4, seed=1)
    assert torch.equal(again.head.weight, hyper.head.weight)
    losses = [frame.loss for frame in train(whole)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    _, first = training()
    frames = iter(train(first, tmp_path, save_every=20))
    for _ in range(20):
        next(frames)
    frames.close()
    _, second = training()
    assert [frame.loss for frame in train(second, tmp_path)] == losses[20:]  # the same z's

    models = hyperdm.members(hyper, 3)
    x, t = torch.randn(5, 10), torch.zeros(5, dtype=torch.long)
    z = torch.randn(3, 1, generator=torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(0, -1)))
    for model, own in zip(models, z, strict=True):
        by_hand = torch.func.functional_call(
            flare.network.scorenet.ScoreNet(10, 8, SCHEDULE), hyper.weights(own), (x, t)
        )
        torch.testing.assert_close(model(x, t), by_hand.detach())
    assert not torch.equal(models[0](x, t), models[1](x, t))
    assert hyper.training
    assert torch.equal(hyper.eval()(x, t), hyper(x, t))  # z = 0 out of training


def test_a_hypernetwork_of_a_diffusers_model_trains_with_labels_and_makes_models():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    net = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(8,), down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
        num_class_embeds=3,
    )  # fmt: skip
    hyper = hyperdm.HyperNetwork(net, width=4)
    data, labels = torch.rand(20, 1, 8, 8), {"class_labels": torch.arange(20) % 3}
    config = TrainConfig(steps=3, warmup=1, batch_size=5)
    for _ in train(Training(hyper, data, SCHEDULE, config, cond=labels)):
        pass
    x, t, one = data[:3], torch.zeros(3, dtype=torch.long), {"class_labels": torch.arange(3)}
    assert hyper(x, t, **one).shape == x.shape
    first, second = hyperdm.members(hyper, 2)
    assert not torch.equal(first(x, t, one), second(x, t, one))
    z = torch.randn(1, generator=torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(0, -1)))
    net.load_state_dict(hyper.weights(z))
    torch.testing.assert_close(first(x, t, one), net.eval()(x, t, **one).sample)
