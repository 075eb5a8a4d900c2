"""Which layers are looked at, and their pooled outputs, against adaptive averages by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import TinyNet
from torch import nn

import flare
from flare.network.layers import count_products, find_layers, pool, watching

TIMES = [torch.tensor([1]), torch.tensor([15])]


class Chain(nn.Module):
    """n linear layers, one after the other."""

    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(n))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)

    def forward(self, x, t):
        for layer in reversed(self.layers):  # the order of calls counts, not that of names
            x = layer(x)
        return x + t.to(x.dtype).view(-1, 1) / 50


def two(*shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n", [1, 2, 11, 12, 13, 24, 40])
def test_twelve_layers_evenly_spaced_in_the_order_of_calls(n):
    found = find_layers(flare.Denoiser(Chain(n)), two(3), TIMES, {})
    places = [n - 1 - int(name.split(".")[1]) for name in found]
    assert len(places) == len(set(places)) == min(n, 12)
    assert places == sorted(places)
    assert {places[0], places[-1]} == {0, n - 1}
    gaps = {b - a for a, b in itertools.pairwise(places)}
    assert max(gaps, default=0) - min(gaps, default=0) <= 1
    assert set(found.values()) == {3}


class Experts(nn.Module):
    """One layer for low noise levels, one for high ones; each is called with its own rows."""

    def __init__(self, guard):
        super().__init__()
        self.low, self.high, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 3)
        self.guard = guard

    def forward(self, x, t):
        h = x.new_zeros(len(x), 4)
        for rows, expert in ((t < 10, self.low), (t >= 10, self.high)):
            if rows.any() or not self.guard:
                h[rows] = expert(x[rows])
        return self.out(h.tanh())


@pytest.mark.parametrize("guard", [True, False])
def test_experts_for_some_levels_are_left_out(guard):
    net, data = Experts(guard), torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    denoiser = flare.Denoiser(net)
    assert find_layers(denoiser, two(3), TIMES, {}) == {"out": 3}
    assert find_layers(denoiser, two(3), TIMES[:1], {}) == {"low": 4, "out": 3}
    with pytest.raises(ValueError, match="'low' is missing or has another shape at some noise levels"):
        find_layers(denoiser, two(3), TIMES, {}, ["low"])
    scorer = flare.fit(net, data, flare.schedules.cosine(20), pairs=60, check=False)
    assert "activations" in scorer.reference.scores
    assert scorer.encoder.layers == {"out": 3}


def test_a_layer_that_is_not_always_called_is_named():
    denoiser, schedule = flare.Denoiser(Experts(True)), flare.schedules.cosine(20)
    encoder = flare.scores.Encoder(
        denoiser, [schedule.at_fraction(0.9)], {"activations": flare.scores.Activations}, 0, 1, {"low": 4}
    )
    with pytest.raises(ValueError, match=r"layer 'low' was not called this time.*layers="):
        encoder(torch.randn(3, 3), {})


def test_what_users_name():
    denoiser = flare.Denoiser(TinyNet((3,), 5))
    x = two(3)
    assert find_layers(denoiser, x, TIMES, {}, ["second", "first"]) == {"first": 5, "second": 3}
    with pytest.raises(ValueError, match=r"thrid"):
        find_layers(denoiser, x, TIMES, {}, ["thrid"])
    with pytest.raises(ValueError, match="the output of 'first' is not a tensor that depends on x"):
        find_layers(denoiser, x[[0, 0]], TIMES, {}, ["first"])


def test_hooks_are_removed_even_after_an_error():
    net = TinyNet((3,), 5)
    with pytest.raises(ZeroDivisionError), watching(net, ["first", "second"]):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in net.modules())
    denoiser = flare.Denoiser(net)
    find_layers(denoiser, two(3), TIMES, {})
    assert not any(module._forward_hooks for module in denoiser.module.modules())


def test_the_first_call_counts_until_it_is_cleared():
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer, nn.ReLU(inplace=True))
    a, b = torch.randn(1, 2), torch.randn(1, 2)
    with watching(net, ["0"]) as seen:
        expected = [layer(each).detach() for each in (a, b)]
        seen.clear()
        net(a)
        net(b)
        assert torch.equal(seen["0"], expected[0])  # not what ReLU made of it
        seen.clear()
        net(b)
        assert torch.equal(seen["0"], expected[1])


def adaptive(values, most):
    """Averages over at most `most` ranges of the last axis, which cover it and may overlap by one."""
    size = values.shape[-1]
    count = min(size, most)
    edges = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    return torch.stack([values[..., a:b].mean(-1) for a, b in edges], dim=-1)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 150))
def test_pooling_of_sequences_and_tokens(rows, channels, length):
    y = torch.randn(
        rows, 1, channels, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    expected = adaptive(y, 64).flatten(1)
    for layer in (nn.Conv1d(1, 1, 1), nn.ConvTranspose1d(1, 1, 1)):
        torch.testing.assert_close(pool(layer, y), expected, rtol=1e-9, atol=1e-9)
    linear = nn.Linear(1, 1)
    torch.testing.assert_close(pool(linear, y.mT), expected, rtol=1e-9, atol=1e-9)
    second = y.mT.transpose(1, 2)  # (rows, length, 1, channels): the batch is the second axis
    torch.testing.assert_close(pool(linear, second), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(pool(nn.Tanh(), y), y.flatten(1))


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 20), st.integers(1, 20))
def test_pooling_of_images(rows, channels, height, width):
    y = torch.randn(rows, 1, channels, height, width, generator=torch.Generator().manual_seed(0))
    expected = adaptive(adaptive(y.double(), 8).mT, 8).mT.flatten(1)
    for layer in (nn.Conv2d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1)):
        torch.testing.assert_close(pool(layer, y).double(), expected, rtol=1e-4, atol=1e-5)


def test_pooling_of_volumes_and_of_half_precision():
    y = torch.randn(2, 1, 3, 9, 4, 7)
    expected = adaptive(adaptive(adaptive(y, 4).transpose(-1, -2), 4).transpose(-1, -2).transpose(-1, -3), 4)
    expected = expected.transpose(-1, -3).flatten(1)
    torch.testing.assert_close(pool(nn.Conv3d(1, 1, 1), y), expected, rtol=1e-4, atol=1e-5)
    large = torch.full((1, 1, 1, 32, 32), 6e4, dtype=torch.float16)
    found = pool(nn.Conv2d(1, 1, 1), large)
    assert found.dtype == torch.float32
    assert found.tolist() == [pytest.approx([6e4] * 64, rel=1e-3)]


def test_products_of_a_call():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 1))

    class Image(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, t):
            return self.net(x)

    found = count_products(flare.Denoiser(Image()), torch.randn(1, 2, 5, 5), torch.tensor([1]), {})
    assert found == 25 * (3 * 2 * 9 + 2 * 3)
