"""Models of denoising-diffusion-pytorch, torchcfm and k-diffusion, opened as their users have them.

At some noise levels, the clean samples that FLARE reads off the network are compared with those of the
package itself. Needs no torchvision, which the packages import for training on files.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

import flare
from flare.diffusion.parameterizations import coefficients

torch.set_num_threads(1)
QUICK: dict[str, Any] = {"subset": 20, "pairs": 20, "check": False, "progress": False}
LEVELS = (1, 30, 70, 100)


def predict_clean(scorer: flare.Scorer, level: int, x: Tensor) -> Tensor:
    """x̂0 = p·x + q·f(x, t) of a noise level."""
    at = scorer.schedule.at(level)
    p, q = coefficients(scorer.denoiser.prediction, at.alpha, at.sigma)
    time = torch.long if scorer.schedule.integer_times else x.dtype
    with torch.no_grad():
        return p * x + q * scorer.denoiser(x, torch.full((len(x),), at.time, dtype=time))


@pytest.mark.parametrize("objective", ["pred_v", "pred_noise", "pred_x0"])
@pytest.mark.parametrize("betas", ["sigmoid", "cosine", "linear"])
def test_a_gaussian_diffusion(objective: str, betas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flare.fit` opens the object by itself."""
    import accelerate  # noqa: F401  # looks for torchvision, and must not find the stand-in

    for name in ("torchvision", "torchvision.transforms", "ema_pytorch"):
        monkeypatch.setitem(sys.modules, name, MagicMock(__spec__=ModuleSpec(name, None)))
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    torch.manual_seed(0)
    net = Unet(dim=8, channels=1, dim_mults=(1, 2), flash_attn=False)
    diffusion = GaussianDiffusion(net, image_size=8, timesteps=100, objective=objective, beta_schedule=betas)
    diffusion.eval()
    images = torch.rand(40, 1, 8, 8)  # in [0, 1], as the package takes them; its network takes [−1, 1]
    scorer = flare.fit(diffusion, 2 * images - 1, **QUICK)
    assert scorer.model.shape == (1, 8, 8)
    for level in LEVELS:
        t = torch.full((5,), level - 1)
        x = diffusion.q_sample(2 * images[:5] - 1, t)
        theirs = diffusion.model_predictions(x, t, clip_x_start=False).pred_x_start
        scale = float(theirs.abs().max())  # 1/α is large at the last levels
        torch.testing.assert_close(predict_clean(scorer, level, x), theirs, rtol=0, atol=2e-3 * max(1, scale))


def test_torchcfm() -> None:
    """A wrapper turns time and velocity around."""
    from torchcfm.conditional_flow_matching import ConditionalFlowMatcher
    from torchcfm.models.models import MLP

    class Backward(nn.Module):
        """Noise at t = 1, and ε − x_0."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            """x (B, 2), t (B,) -> (B, 2)."""
            return -self.net(torch.cat([x, 1 - t[:, None]], dim=1))

    torch.manual_seed(0)
    data, net, matcher = torch.randn(200, 2), MLP(dim=2, time_varying=True), ConditionalFlowMatcher(sigma=0.0)
    scorer = flare.fit(Backward(net), data, flare.schedules.flow(100), prediction="flow", **QUICK)
    for level in LEVELS:
        time = torch.full((5,), 1 - level / 100)
        t, x, velocity = matcher.sample_location_and_conditional_flow(torch.randn(5, 2), data[:5], t=time)
        torch.testing.assert_close(x + (1 - t)[:, None] * velocity, data[:5])  # so x_1 is read off like this
        theirs = x + (1 - t)[:, None] * net(torch.cat([x, t[:, None]], dim=1)).detach()
        torch.testing.assert_close(predict_clean(scorer, level, x), theirs, rtol=1e-4, atol=1e-4)


def test_k_diffusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner model of a Denoiser needs no wrapper."""
    spec = importlib.util.find_spec("k_diffusion")
    assert spec is not None
    package = ModuleType("k_diffusion")  # its __init__ imports torchvision and CLIP
    package.__path__ = list(spec.submodule_search_locations or [])
    utils = MagicMock(append_dims=lambda x, n: x[(..., *[None] * (n - x.ndim))])
    stands_in = {"": package, ".sampling": MagicMock(), ".utils": utils}
    for name, module in stands_in.items():
        monkeypatch.setitem(sys.modules, f"k_diffusion{name}", module)
    monkeypatch.setitem(sys.modules, "dctorch", MagicMock())
    from k_diffusion.layers import Denoiser

    class Inner(nn.Module):
        """F(c_in·x, σ)."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))

        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            """x (B, 2), σ (B,) -> (B, 2)."""
            return self.net(torch.cat([x, sigma.log()[:, None] / 4], dim=1))

    torch.manual_seed(0)
    data, denoiser = torch.randn(200, 2), Denoiser(Inner(), sigma_data=0.7)
    schedule, prediction = flare.schedules.edm(0.02, 10.0, T=100), f"edm_sigma:{denoiser.sigma_data}"
    scorer = flare.fit(denoiser.inner_model, data, schedule, prediction=prediction, **QUICK)
    for level in LEVELS:
        sigma = torch.full((5,), schedule.at(level).sigma)
        x = data[:5] + sigma[:, None] * torch.randn(5, 2)
        theirs = denoiser(x, sigma).detach()
        torch.testing.assert_close(predict_clean(scorer, level, x), theirs, rtol=1e-4, atol=1e-4)
