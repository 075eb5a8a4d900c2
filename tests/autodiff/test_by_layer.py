"""Gradients by layer against ordinary backward passes, one sample at a time."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import loss_gradients
from torch import nn

import flare
from flare import subsets
from flare.autodiff import by_layer, contractions, vjp
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
    "tied": tied,
    "functional": lambda: [Functional()],
    "doubled": lambda: [Doubled()],
}  # fmt: skip


def problem(name):
    torch.manual_seed(0)
    net = Net(*NETS[name]()).double().eval()
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
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_ordinary_passes(name, kind):
    net, denoiser, x, t, y, w = problem(name)
    subset = choose(kind, denoiser)
    expected = naive(net, subset, x, t, y, w)
    ours = loss_gradients(denoiser, subset, x, t, y, w)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)
    probes = torch.randn(SAMPLES, 3, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    rows = vjp.pull_rows(denoiser, subset, x[:, 0], t[:1].expand(SAMPLES), probes)
    J, _ = vjp.jacobian(denoiser, subset, x[:, 0], t[:1].expand(SAMPLES))
    expected = torch.einsum("bkd,bdm->bkm", probes.flatten(2), J)
    torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-10)


LOOSE = {
    "rms norm": {"layers.0.layer.weight"},
    "batch norm": {"layers.0.weight", "layers.0.bias"},
    "own parameter": {"layers.0.scale"},
    "functional": {"layers.0.conv.weight", "layers.0.conv.bias"},
}  # the parameters that are used outside of plain layers


@pytest.mark.parametrize("name", NETS)
def test_all_rows_run_together_and_few_parameters_have_copies(name):
    _, denoiser, x, t, _, _ = problem(name)
    run = by_layer.Pass(*start(denoiser, x[:, 0], t[:1].expand(SAMPLES)))
    assert run.layers.loose == LOOSE.get(name, set())


def start(denoiser, x, t, subset=None):
    return ByLayer(denoiser, subset or subsets.everything(denoiser), x, t, None), x, t, None


@pytest.mark.parametrize("memory", [1, 10_000, 200_000])
def test_chunks_of_samples_and_of_states_change_nothing(memory, monkeypatch):
    net, denoiser, x, t, y, w = problem("group norm")
    subset = choose("few", denoiser)
    monkeypatch.setattr(vjp, "MEMORY", memory)
    ours = loss_gradients(denoiser, subset, x, t, y, w)
    torch.testing.assert_close(ours, naive(net, subset, x, t, y, w), rtol=1e-9, atol=1e-10)


def test_a_network_that_sees_a_single_row_of_an_expanded_time():
    """The shipped networks compute the features of an expanded time once."""
    model = flare.bench.load("grid")
    subset = subsets.random(model.denoiser, count=300)
    x, t = model.data[:6], torch.tensor([40]).expand(6)
    u = torch.randn(6, 2)
    arguments = start(model.denoiser, x, t, subset)
    ours, theirs = (way(*arguments).pull(u, 6) for way in (by_layer.Pass, by_layer.RowByRow))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class OneRowForEqualTimes(Net):
    """A network that looks at the values of t: the rows that its layers see depend on the batch."""

    def forward(self, x, t):
        return super().forward(x, t if len(t.unique()) > 1 else t[:1])


def test_a_network_that_branches_on_its_times():
    torch.manual_seed(0)
    net = OneRowForEqualTimes(conv()).double()
    denoiser = flare.Denoiser(net)
    subset = subsets.everything(denoiser)
    x = torch.randn(SAMPLES, STATES, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    y, w = torch.zeros_like(x), torch.ones(STATES, dtype=torch.float64)
    for t in ([3, 8], [5, 5]):
        t = torch.tensor(t)
        ours = loss_gradients(denoiser, subset, x, t, y, w)
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


class Halves(subsets.Subset):
    """The first half of some parameters, by a gather that nothing else knows of."""

    @property
    def size(self):
        return self.entry_count // 2

    def gather(self, tensors, lead=0):
        return super().gather(tensors, lead)[..., : self.size]


def test_coordinates_that_only_gather_are_refused():
    denoiser = flare.Denoiser(Attention())
    whole = subsets.everything(denoiser)
    x, t = torch.randn(3, 4), torch.arange(3)
    with pytest.raises(ValueError, match="a subclass of Subset defines expand and contract"):
        vjp.pull_rows(denoiser, Halves(whole.indices, whole.shapes), x, t, torch.ones(3, 1, 4))


class Attention(nn.Module):
    """Two small layers with a large matrix between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 64), nn.Linear(64, 4)

    def forward(self, x, t):
        tokens = self.inner(x)
        weights = (tokens[:, :, None] * tokens[:, None]).softmax(-1)
        return self.outer((weights @ tokens[..., None])[..., 0])


def test_a_pass_counts_what_lies_between_the_layers():
    denoiser = flare.Denoiser(Attention())
    subset = flare.subsets.named(denoiser, ["inner.bias"])
    x, t = torch.randn(6, 4), torch.arange(6)
    size = ByLayer(denoiser, subset, x, t, None).row_size
    assert 64 * 64 <= size <= 4 * 64 * 64  # the matrix, a few times, and no parameters


def test_a_pass_frees_its_graph_at_once():
    """Without the garbage collector: a large network's graph is gigabytes."""
    _, denoiser, x, t, _, _ = problem("group norm")
    gc.disable()
    try:
        run = by_layer.Pass(*start(denoiser, x[:, 0], t[:1].expand(SAMPLES)))
        run.pull(torch.ones_like(x[:, 0]), SAMPLES)
        inputs = [weakref.ref(call.inputs) for call in run.calls]
        del run
        assert not any(ref() is not None for ref in inputs)
    finally:
        gc.enable()


def difference(net, denoiser, x, t, cond=None, subset=None):
    """The largest difference to ordinary gradients, which may depend on a condition."""
    subset = subset or subsets.everything(denoiser)
    y, w = torch.zeros_like(x), torch.ones(len(t), dtype=x.dtype)
    ours = loss_gradients(denoiser, subset, x, t, y, w, cond)
    for p in net.parameters():
        p.requires_grad_()
    found = []
    for row, states in enumerate(x.detach()):
        own = {
            name: value.detach()[row].expand(len(t), *value.shape[1:]) for name, value in (cond or {}).items()
        }
        loss = 0.5 * net(states, t, **own).square().sum()
        grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        by_name = {
            name: torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(net.named_parameters(), grads, strict=True)
        }
        found.append(subset.gather({name: by_name[name] for name in subset.indices}))
    return (ours - torch.stack(found)).abs().max().item()


class Conditional(nn.Module):
    """Linear layers with a condition: as a sum, as a keyword of a layer, and as an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.text = nn.Linear(3, 4), nn.Linear(2, 4)
        self.gain, self.last = Gain(), nn.Linear(4, 3)

    def forward(self, x, t, c=None):
        hidden = self.first(x + t[:, None] / 10)
        hidden = self.gain(torch.tanh(hidden), factor=None if c is None else c.sum(1, keepdim=True))
        return self.last(hidden if c is None else hidden + self.text(c))


class Gain(nn.Module):
    """A layer with a parameter of its own and an argument by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x, factor=None):
        return x * self.own if factor is None else x * self.own * factor


X, T = (
    torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.tensor([3, 8]),
)


def test_conditions_and_arguments_by_keyword():
    torch.manual_seed(0)
    net = Conditional().double()
    denoiser = flare.Denoiser(net)
    c = torch.randn(4, 2, dtype=torch.float64)
    assert difference(net, denoiser, X, T) < 1e-10
    assert difference(net, denoiser, X, T, {"c": c}) < 1e-10


def test_inputs_with_gradients_of_their_own_are_left_alone():
    torch.manual_seed(0)
    net = Conditional().double()
    denoiser = flare.Denoiser(net)
    encoder = nn.Linear(2, 2).double()
    x = X.clone().requires_grad_()
    c = encoder(torch.randn(4, 2, dtype=torch.float64))
    assert difference(net, denoiser, X, T, {"c": c.detach()}) < 1e-10
    assert difference(net, denoiser, x, T, {"c": c}) < 1e-10
    assert difference(net, flare.Denoiser(net), x, T, {"c": c}) < 1e-10
    assert x.grad is None
    assert encoder.weight.grad is None


class Scaled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight * 0.3, self.bias)


class Sorted(nn.Module):
    """Rows in the order of their times."""

    def __init__(self, descending: bool) -> None:
        super().__init__()
        self.linear, self.descending = nn.Linear(3, 3), descending

    def forward(self, x, t):
        order = t.argsort(descending=self.descending, stable=True)
        return torch.tanh(self.linear(x[order]))[order.argsort()] * x


class Gated(nn.Module):
    """A weight that is used without calling its layer: at late times, or if a gate is open."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.linear, self.hidden = nn.Linear(3, 3), nn.Linear(3, 3)
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, x, t):
        late = (t > 5).to(x.dtype)[:, None] * self.gate
        return self.linear(x) + late * torch.tanh(
            nn.functional.linear(x, self.hidden.weight, self.hidden.bias)
        )


@pytest.mark.parametrize("descending", [False, True])
def test_a_network_that_sorts_its_rows_by_time(descending):
    net = Sorted(descending).double()
    assert difference(net, flare.Denoiser(net), X, T) < 1e-10


def test_a_path_that_opens_at_some_times_or_later():
    net = Gated(1.0).double()
    assert difference(net, flare.Denoiser(net), X, T) < 1e-10
    net = Gated(0.0).double()
    denoiser = flare.Denoiser(net)
    assert difference(net, denoiser, X, T) < 1e-10
    with torch.no_grad():
        net.gate.fill_(1.0)
    assert difference(net, denoiser, X, T) < 1e-10


def test_a_subclass_with_another_forward_for_many_entries_and_for_few():
    torch.manual_seed(0)
    net = Net(Pointwise(Scaled(CHANNELS, 20)), Pointwise(Scaled(20, CHANNELS))).double()
    denoiser = flare.Denoiser(net)
    x = torch.randn(3, 2, CHANNELS, SIZE, SIZE, dtype=torch.float64)
    assert difference(net, denoiser, x, T) < 1e-9
    names = subsets.everything(denoiser).indices
    few = flare.subsets.Subset(
        {name: index[:1] for name, index in names.items()}, {n: denoiser.params[n].shape for n in names}
    )
    assert difference(net, denoiser, x, T, subset=few) < 1e-9


def test_few_entries_are_summed_in_parts(monkeypatch):
    net, denoiser, x, t, y, w = problem("convolutions")
    subset = choose("few", denoiser)
    monkeypatch.setattr(contractions, "_NUMBERS", 1)
    ours = loss_gradients(denoiser, subset, x, t, y, w)
    torch.testing.assert_close(ours, naive(net, subset, x, t, y, w), rtol=1e-9, atol=1e-10)
