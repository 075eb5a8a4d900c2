"""Models of other packages, as stand-ins with the interface of the real ones and a network that is exact.

The data is normal with standard deviation S per coordinate, so the best prediction is linear in x, in closed
form. A wrong time, sign or parameterization is therefore found by the check of the model.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flare
from flare.scorer.inputs import open_gaussian_diffusion

S, T, SHAPE = 0.4, 100, (1, 4, 4)
QUICK = {"subset": 10, "pairs": 50, "progress": False}


def normal_data(*shape):
    return S * torch.randn(400, *shape, generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    """Returns factor(t)·x, through a linear layer whose weights are the identity."""

    def __init__(self, size, factor):
        super().__init__()
        self.layer, self.factor = nn.Linear(size, size), factor
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(size))
            self.layer.bias.zero_()

    def forward(self, x, t):
        factor = self.factor(t.double()).to(x).view(-1, *[1] * (x.ndim - 1))
        return factor * self.layer(x.flatten(1)).view_as(x)


class GaussianDiffusion(nn.Module):
    """The attributes of denoising-diffusion-pytorch's class of this name."""

    def __init__(self, objective):
        super().__init__()
        betas = torch.linspace(1e-3, 0.1, T)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", (1 - betas).cumprod(0))
        self.objective, self.image_size, self.num_timesteps = objective, SHAPE[1:], T

        def factor(t):
            kept = self.alphas_cumprod[t.long()]
            a, s, total = kept.sqrt(), (1 - kept).sqrt(), kept * S**2 + 1 - kept
            clean, noise = a * S**2 / total, s / total  # E[x_0 | x] and E[ε | x], per x
            return {"pred_noise": noise, "pred_x0": clean, "pred_v": a * noise - s * clean}[objective]

        self.model, self.channels = Scaled(16, factor), SHAPE[0]


@pytest.mark.parametrize("objective", ["pred_noise", "pred_x0", "pred_v"])
def test_a_gaussian_diffusion_is_opened_with_its_noise_levels_and_objective(objective, tmp_path):
    diffusion = GaussianDiffusion(objective)
    scorer = flare.fit(diffusion, normal_data(*SHAPE).clamp(-1, 1), **QUICK)
    assert scorer.about["problems"] == []
    assert scorer.model.shape == SHAPE
    assert scorer.schedule.T == T
    scorer.save(tmp_path / "scorer")
    again = flare.load(tmp_path / "scorer", diffusion)
    assert torch.equal(again.sample(3, steps=5).p_value, scorer.sample(3, steps=5).p_value)


def test_one_of_series_knows_its_length_and_other_modules_stay_as_they_are():
    diffusion = GaussianDiffusion("pred_v")
    diffusion.seq_length = 16
    del diffusion.image_size
    assert open_gaussian_diffusion(diffusion).shape == (1, 16)
    net = nn.Linear(2, 2)
    assert open_gaussian_diffusion(net) is net


def test_a_wrapper_of_two_lines_fits_torchcfm():
    def velocity(t):  # E[x_1 − x_0 | x] per x, of x = t·x_1 + (1 − t)·x_0 with data x_1 and noise x_0
        return (t * S**2 - (1 - t)) / (t**2 * S**2 + (1 - t) ** 2)

    class Backward(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x, t):
            return -self.net(x, 1 - t)

    data, schedule = normal_data(4), flare.schedules.flow(100)
    scorer = flare.fit(Backward(Scaled(4, velocity)), data, schedule, prediction="flow", **QUICK)
    assert scorer.about["problems"] == []
    with pytest.warns(UserWarning, match="run time backward, with noise at t = 0, and to predict x_0 − ε"):
        flare.fit(Scaled(4, velocity), data, schedule, prediction="flow", **QUICK)


def test_the_inner_model_of_k_diffusion_is_called_with_sigma():
    sigma_data = 1.0

    def inner(sigma):  # E[(x_0 − c_skip·x)/c_out | x], per c_in·x
        total = (sigma**2 + sigma_data**2).sqrt()
        skip, out = sigma_data**2 / total**2, sigma * sigma_data / total
        return (S**2 / (S**2 + sigma**2) - skip) / out * total

    schedule = flare.schedules.edm(0.01, 10.0, T=100)
    prediction = f"edm_sigma:{sigma_data}"
    scorer = flare.fit(Scaled(4, inner), normal_data(4), schedule, prediction=prediction, **QUICK)
    assert scorer.about["problems"] == []
