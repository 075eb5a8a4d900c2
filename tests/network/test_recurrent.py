"""Networks with recurrent layers, which torch.func cannot batch, have their curvature and variances."""

from __future__ import annotations

import pytest
import torch
from reference import naive_ggn
from torch import nn

import flare
from flare.posteriors.curvature import ggn


class OneCell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 2)
        self.out = nn.Linear(2, 3)

    def forward(self, x, t):
        state = self.layer(x + t.view(-1, 1) / 20)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_networks_of_cells_have_their_curvature(kind):
    net = OneCell(kind).double()
    denoiser = flare.Denoiser(net)
    data = torch.randn(10, 3, dtype=torch.float64)
    pairs = flare.noising.pairs(data, flare.schedules.cosine(20), n=6, batch_size=3)
    H, _ = ggn(denoiser, flare.subsets.everything(denoiser), pairs, probes=None)
    torch.testing.assert_close(H, naive_ggn(net, pairs)[0], rtol=1e-8, atol=1e-10)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 2, batch_first=True)
        self.out = nn.Linear(2, 3)

    def forward(self, x, t):
        return self.out(self.layer(x + t.view(-1, 1, 1) / 20)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_have_their_curvature(kind):
    torch.manual_seed(0)
    net = Recurrent(kind).double()
    denoiser = flare.Denoiser(net)
    data = torch.randn(10, 4, 3, dtype=torch.float64)
    pairs = flare.noising.pairs(data, flare.schedules.cosine(20), n=6, batch_size=3)
    H, _ = ggn(denoiser, flare.subsets.everything(denoiser), pairs, probes=None)
    expected, _ = naive_ggn(net, pairs)
    torch.testing.assert_close(H, expected, rtol=1e-8, atol=1e-10)
    single = flare.Denoiser(Recurrent(kind))
    for fit in (flare.posteriors.dense, flare.posteriors.diagonal):
        posterior = fit(single, flare.subsets.everything(single), pairs, 1.0)
        assert posterior.draw(2).isfinite().all()
    steps, variances = flare.samplers.ddim(pairs.schedule, 3), []
    for rule in ("tangent", "monte_carlo"):
        small = posterior.refit(1e6)
        found = flare.sample(single, steps, small, n=4, shape=(4, 3), rule=rule, directions=64, score="trace")
        variances.append(found.score)
    torch.testing.assert_close(*variances, rtol=0.1, atol=0)
