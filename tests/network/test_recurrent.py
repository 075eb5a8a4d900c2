"""Recurrent layers: step by step they give the same outputs, and curvature that fused kernels lack."""

from __future__ import annotations

import pytest
import torch
from reference import naive_ggn
from torch import nn

import flare
from flare.network.forward_mode import Workarounds
from flare.posteriors.curvature import ggn


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}],
    ids=["plain", "two layers both ways", "batch first without bias"],
)
def test_step_by_step_outputs_are_those_of_the_layer(kind, options):
    layer = kind(3, 4, **options).double().eval()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = layer(x)
    with Workarounds():
        found = layer(x)
    torch.testing.assert_close(found, expected)


def test_projections_and_relu():
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    for layer in (nn.LSTM(3, 4, proj_size=2).double(), nn.RNN(3, 4, nonlinearity="relu").double()):
        with Workarounds():
            found = layer(x)
        torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cell_outputs_are_those_of_torch(kind):
    cell, x = kind(3, 4).double(), torch.randn(2, 3, dtype=torch.float64)
    expected = cell(x)
    with Workarounds():
        found = cell(x)
    torch.testing.assert_close(found, expected)


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
