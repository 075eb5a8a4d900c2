"""Gradients by layer against ordinary backward passes, one sample at a time."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import flare
from flare import subsets
from flare.autodiff import by_layer, contractions, loss_gradients, vjp
from flare.autodiff.by_layer import ByLayer

CHANNELS, SIZE, SAMPLES, STATES = 4, 6, 3, 2


class Net(nn.Module):
    """Some layers on images, with a time embedding of one number."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.time = nn.Linear(1, CHANNELS)

    def forward(self, x, t):
        time = self.time((t.to(x.dtype) / 10)[:, None])
        return self.layers(x + time[..., None, None])


class Pointwise(nn.Module):
    """A layer of the channels at every place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)


class Twice(nn.Module):
    """The same layer, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x):
        return self.conv(torch.tanh(self.conv(x)))


class Functional(nn.Module):
    """A layer whose weight is used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x):
        return nn.functional.conv2d(x, self.conv.weight, self.conv.bias) + self.conv(x)


class Doubled(nn.Module):
    """Two rows per sample, as guidance has in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x):
        first, second = self.conv(torch.cat([x, torch.sin(x)])).chunk(2)
        return first * second


class Scale(nn.Module):
    """A parameter of its own, which no formula knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(CHANNELS, 1, 1) + 0.5)

    def forward(self, x):
        return x * self.scale


class Unused(nn.Module):
    """A layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(3, 3)
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x):
        return self.conv(x)


def tied():
    first, second = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
    second.weight = first.weight
    return [first, nn.Tanh(), second]


def conv(**options):
    return nn.Conv2d(CHANNELS, CHANNELS, 3, **{"padding": 1, **options})


NETS = {
    "convolutions": lambda: [conv(), nn.SiLU(), conv(bias=False)],
    "stride": lambda: [conv(stride=2), nn.Upsample(scale_factor=2), nn.Conv2d(CHANNELS, CHANNELS, 1)],
    "dilation": lambda: [conv(dilation=2, padding=2)],
    "in place": lambda: [conv(), nn.ReLU(inplace=True), conv()],
    "group norm": lambda: [conv(), nn.GroupNorm(2, CHANNELS), nn.SiLU(), conv()],
    "layer norm": lambda: [Pointwise(nn.LayerNorm(CHANNELS)), Pointwise(nn.Linear(CHANNELS, CHANNELS))],
    "layer norm of images": lambda: [nn.LayerNorm((CHANNELS, SIZE, SIZE)), conv()],
    "rms norm": lambda: [Pointwise(nn.RMSNorm(CHANNELS)), conv()],
    "batch norm": lambda: [nn.BatchNorm2d(CHANNELS), conv()],
    "groups": lambda: [conv(groups=2)],
    "circular": lambda: [conv(padding_mode="circular")],
    "same": lambda: [conv(padding="same")],
    "transposed": lambda: [nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1)],
    "called twice": lambda: [Twice()],
    "unused": lambda: [Unused()],
    "own parameter": lambda: [Scale(), conv()],
}  # fmt: skip
REFUSED = {"tied": tied, "functional": lambda: [Functional()], "doubled": lambda: [Doubled()]}


def problem(name):
    torch.manual_seed(0)
    net = Net(*(NETS | REFUSED)[name]()).double().eval()
    x = torch.randn(SAMPLES, STATES, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    y = torch.randn_like(x)
    return net, flare.Denoiser(net), x, torch.tensor([3, 8]), y, torch.tensor([0.5, 2.0], dtype=torch.float64)


def naive(net, subset, x, t, y, w):
    """One backward pass per sample through the module itself."""
    found = []
    for states, targets in zip(x, y, strict=True):
        net.zero_grad(set_to_none=True)
        for p in net.parameters():
            p.requires_grad_()
        errors = net(states, t) - targets
        (0.5 * (w * errors.square().flatten(1).sum(1)).sum()).backward()
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
        found.append(subset.gather({name: grads[name] for name in subset.indices}))
    return torch.stack(found)


def choose(kind, denoiser):
    p = denoiser.parameter_count
    return {
        "few": lambda: subsets.random(denoiser, count=max(1, p // 30)),
        "many": lambda: subsets.random(denoiser, fraction=0.5),
        "all": lambda: subsets.everything(denoiser),
        "sketch": lambda: subsets.sketch(denoiser, 7),
    }[kind]()


@pytest.mark.parametrize("kind", ["few", "many", "all", "sketch"])
@pytest.mark.parametrize("name", [*NETS, *REFUSED])
def test_gradients_are_those_of_ordinary_passes(name, kind):
    net, denoiser, x, t, y, w = problem(name)
    subset = choose(kind, denoiser)
    expected = naive(net, subset, x, t, y, w)
    ours = loss_gradients.loss_gradients(denoiser, subset, x, t, y, w)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)
    probes = torch.randn(SAMPLES, 3, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    rows, _ = vjp.pull_rows(denoiser, subset, x[:, 0], t[:1].expand(SAMPLES), probes)
    by_function, _ = vjp.pull_rows(denoiser, subset, x[:, 0], t[:1].expand(SAMPLES), probes, state=True)
    torch.testing.assert_close(rows, by_function, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [*NETS, *REFUSED])
def test_which_networks_go_by_layer(name):
    _, denoiser, x, t, _, _ = problem(name)
    layers = ByLayer(denoiser, subsets.everything(denoiser))
    assert layers.suits(x[:, 0], t[:1].expand(SAMPLES), None) == (name in NETS)


@pytest.mark.parametrize("memory", [1, 10_000, 200_000])
def test_chunks_of_samples_and_of_states_change_nothing(memory, monkeypatch):
    net, denoiser, x, t, y, w = problem("group norm")
    subset = choose("few", denoiser)
    monkeypatch.setattr(loss_gradients, "MEMORY", memory)
    ours = loss_gradients.loss_gradients(denoiser, subset, x, t, y, w)
    torch.testing.assert_close(ours, naive(net, subset, x, t, y, w), rtol=1e-9, atol=1e-10)


def test_a_network_that_sees_a_single_row_of_an_expanded_time(monkeypatch):
    """The shipped networks compute the features of an expanded time once."""
    model = flare.zoo.load("grid")
    subset = subsets.random(model.denoiser, count=300)
    x, t = model.data[:6], torch.tensor([40]).expand(6)
    u = torch.randn(6, 1, 2)
    ours, _ = vjp.pull_rows(model.denoiser, subset, x, t, u)
    assert ByLayer(model.denoiser, subset).suits(x, t, None)
    monkeypatch.setattr(by_layer, "_TRIED", {model.denoiser: {tuple(subset.indices): None}})
    theirs, _ = vjp.pull_rows(model.denoiser, subset, x, t, u)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class OneRowForEqualTimes(Net):
    """A network that looks at the values of t: the rows that its layers see depend on the batch."""

    def forward(self, x, t):
        return super().forward(x, t if len(t.unique()) > 1 else t[:1])


def test_a_network_that_turns_out_unsuitable_later():
    torch.manual_seed(0)
    net = OneRowForEqualTimes(conv()).double()
    denoiser = flare.Denoiser(net)
    subset = subsets.everything(denoiser)
    x = torch.randn(SAMPLES, STATES, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    y, w = torch.zeros_like(x), torch.ones(STATES, dtype=torch.float64)
    for t in ([3, 8], [5, 5]):
        t = torch.tensor(t)
        ours = loss_gradients.loss_gradients(denoiser, subset, x, t, y, w)
        torch.testing.assert_close(ours, naive(net, subset, x, t, y, w), rtol=1e-9, atol=1e-10)


@given(
    dims=st.integers(1, 3), kernel=st.integers(1, 3), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    padding=st.integers(0, 3), data=st.data(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_entries_of_any_convolution(dims, kernel, stride, dilation, padding, data):
    torch.manual_seed(0)
    make = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    layer = make(3, 2, kernel, stride=stride, dilation=dilation, padding=padding).double()
    a = torch.randn(4, 3, *range(5, 5 + dims), dtype=torch.float64)
    g = torch.randn_like(layer(a))
    size = layer.weight.numel()
    index = torch.tensor(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=5))))
    ours = contractions._few_of_convolution(layer, index)(a, g, 2)
    for sample in range(2):
        rows = slice(2 * sample, 2 * sample + 2)
        expected = torch.autograd.grad(layer(a[rows]), layer.weight, g[rows])[0].flatten()[index]
        torch.testing.assert_close(ours[sample], expected)


def test_a_pass_frees_its_graph_at_once():
    """Without the garbage collector: a large network's graph is gigabytes."""
    _, denoiser, x, t, _, _ = problem("group norm")
    gc.disable()
    try:
        run = ByLayer(denoiser, subsets.everything(denoiser)).run(x[:, 0], t[:1].expand(SAMPLES), None)
        run.pull(torch.ones_like(x[:, 0]), SAMPLES)
        inputs = [weakref.ref(call.inputs[0]) for call in run.recording.calls]
        del run
        assert not any(ref() is not None for ref in inputs)
    finally:
        gc.enable()
