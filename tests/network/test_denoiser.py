from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reference import Backward, TinyNet
from torch import nn
from torch.func import jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import flare
from flare import Denoiser
from flare.autodiff.vjp import pull_rows

SHAPES = [(5,), (2, 6), (3, 4, 4)]


def inputs(shape, batch=4, dtype=torch.float32):
    return torch.randn(batch, *shape, dtype=dtype), torch.arange(batch)


@pytest.mark.parametrize("shape", SHAPES)
def test_its_output_is_that_of_the_network(shape):
    net = TinyNet(shape)
    x, t = inputs(shape)
    shift = torch.randn(4)
    torch.testing.assert_close(Denoiser(net)(x, t, {"shift": shift}), net(x, t, shift=shift))
    assert not Denoiser(net)(x, t).requires_grad


@pytest.mark.parametrize("shape", SHAPES)
def test_jvp_vjp_and_vmap_agree_with_the_jacobian(shape):
    net = TinyNet(shape).double()
    denoiser = Denoiser(net)
    x, t = inputs(shape, dtype=torch.float64)
    tangents = {name: torch.randn_like(p) for name, p in denoiser.params.items()}

    def f(params):
        return denoiser.call(params, x, t)

    out, forward = jvp(f, (denoiser.params,), (tangents,))
    jacobian = jacrev(f)(denoiser.params)
    expected = sum((jacobian[k] * v).flatten(x.ndim).sum(-1) for k, v in tangents.items())
    torch.testing.assert_close(forward, expected)
    _, pull = vjp(f, denoiser.params)
    (back,) = pull(torch.ones_like(out))
    for name, grad in back.items():
        torch.testing.assert_close(grad, jacobian[name].flatten(0, x.ndim - 1).sum(0))
    many = {name: torch.stack([v, 2 * v]) for name, v in tangents.items()}
    pushed = vmap(lambda v: jvp(f, (denoiser.params,), (v,))[1])(many)
    torch.testing.assert_close(pushed, torch.stack([forward, 2 * forward]))


class Counting(nn.Module):
    """Writes to a buffer in every pass and drops out in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, t):
        self.calls += 1
        return self.dropout(self.norm(self.linear(x)))


def test_the_module_is_never_changed():
    net = Counting().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    denoiser = Denoiser(net)
    x, t = inputs((3,))
    first = denoiser(x, t)
    assert torch.equal(first, denoiser(x, t)), "eval mode: no dropout, fixed statistics"
    jvp(lambda p: denoiser.call(p, x, t), (denoiser.params,), (denoiser.params,))
    assert net.training
    assert net.norm.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_weights_are_shared_and_tied_weights_count_once():
    net = TinyNet((4,), width=5)
    net.second.weight = nn.Parameter(torch.randn(4, 5))
    net.first.weight = nn.Parameter(torch.randn(5, 5))
    denoiser = Denoiser(net)
    x, t = inputs((4,))
    before = denoiser(x, t)
    with torch.no_grad():
        net.second.bias += 1
    torch.testing.assert_close(denoiser(x, t), before + 1)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x, t):
            return self.b(self.a(x))

    tied = Denoiser(Tied())
    assert tied.parameter_count == 9
    x, t = inputs((3,))
    doubled = tied.call({"a.weight": 2 * tied.params["a.weight"]}, x, t)
    torch.testing.assert_close(doubled, 4 * tied(x, t))


def test_diffusers_style_outputs_are_unwrapped():
    class Wrapped(TinyNet):
        def forward(self, x, t):
            return SimpleNamespace(sample=super().forward(x, t))

    x, t = inputs((3,))
    assert Denoiser(Wrapped((3,)))(x, t).shape == x.shape


def test_half_precision_is_called_in_its_own_dtype():
    net = TinyNet((3,)).bfloat16()
    x, t = inputs((3,))
    out = Denoiser(net)(x, t)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, net(x.bfloat16(), t).float())


class Narrow(TinyNet):
    def forward(self, x, t):
        return super().forward(x, t)[:, :-1]


class Poisoned(TinyNet):
    def forward(self, x, t):
        return super().forward(x, t) / torch.zeros_like(x)


class OneWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.odd = Odd()

    def forward(self, x, t):
        return self.odd(self.linear(x))


class Odd(nn.Module):
    def forward(self, x):
        return Backward.apply(x)


def differentiate(denoiser, x, t):
    with denoiser.forward_mode():
        torch.func.jvp(lambda state: denoiser.call({}, state, t), (x,), (x,))


def test_bad_networks_are_named_with_a_way_out():
    x, t = inputs((3,))
    with pytest.raises(ValueError, match=r"Narrow must return .* \(4, 3\), got shape \(4, 2\)"):
        Denoiser(Narrow((3,)))(x, t)
    with pytest.raises(
        RuntimeError, match=r"OneWay cannot be differentiated in forward mode: its module 'odd' \(Odd\)"
    ):
        differentiate(Denoiser(OneWay()), x, t)
    differentiate(Denoiser(TinyNet((3,))), x, t)
    with pytest.raises(TypeError, match="wrap a function"):
        Denoiser(lambda x, t: x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameters"):
        Denoiser(Odd())
    with pytest.raises(ValueError, match="did you mean 'epsilon'"):
        Denoiser(TinyNet((3,)), "epsilo")


def test_the_fingerprint_sees_weights_buffers_and_what_is_predicted():
    net = Counting()
    first = Denoiser(net).fingerprint()
    assert Denoiser(net).fingerprint() == first
    assert Denoiser(net, "v").fingerprint()["structure"] != first["structure"]
    net.norm.running_var += 1
    assert Denoiser(net).fingerprint()["weights"] != first["weights"]


def test_data_parallel_is_unwrapped():
    net = TinyNet((3,))
    x, t = inputs((3,))
    torch.testing.assert_close(Denoiser(nn.DataParallel(net))(x, t), net(x, t))


class Keeper(nn.Module):
    """A network that reaches its second layer in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.c, self.how = nn.Linear(3, 4), nn.Linear(4, 3), how
        self.tensors, self.modules_too = [self.c.weight], [self.c]
        self.function = lambda h: self.c(h)
        self.view = self.c.weight.T
        self.method = self.c.forward

    def forward(self, x, t):
        h = torch.tanh(self.a(x))
        ways = {
            "list of tensors": lambda: nn.functional.linear(h, self.tensors[0]),
            "function": lambda: self.function(h),
            "view": lambda: h @ self.view,
            "list of modules": lambda: self.modules_too[0](h),
            "method": lambda: self.method(h),
            "checkpoint": lambda: checkpoint(self.c, h, use_reentrant=False),
            "reentrant checkpoint": lambda: checkpoint(self.c, h, use_reentrant=True),
        }
        return ways[self.how]()


@pytest.mark.parametrize("how", ["list of tensors", "function", "view"])
def test_parameters_that_cannot_be_replaced_are_refused(how):
    denoiser = flare.Denoiser(Keeper(how))
    data = torch.randn(40, 3)
    pairs = flare.noising.pairs(data, flare.schedules.cosine(10), n=20)
    with pytest.raises(ValueError, match=r"reaches .*c\.weight past the module that owns it"):
        flare.posteriors.dense(denoiser, flare.subsets.everything(denoiser), pairs)
    with pytest.raises(ValueError, match=r"c\.weight past"):
        flare.fit(denoiser, data, flare.schedules.cosine(10))


@pytest.mark.parametrize("how", ["list of modules", "method", "checkpoint", "reentrant checkpoint"])
def test_other_ways_to_a_layer_give_the_same_curvature(how):
    traces = []
    for way in ("list of modules", how):
        torch.manual_seed(0)
        denoiser = flare.Denoiser(Keeper(way))
        pairs = flare.noising.pairs(torch.randn(40, 3), flare.schedules.cosine(10), n=20)
        posterior = flare.posteriors.dense(denoiser, flare.subsets.everything(denoiser), pairs, probes=None)
        traces.append(posterior.eigenvalues)
    torch.testing.assert_close(*traces)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_weight_norm_keeps_a_weight_that_is_no_leaf():
    torch.manual_seed(0)
    net = TinyNet((3,), 4).double()
    nn.utils.weight_norm(net.second)
    x, t = inputs((3,), dtype=torch.float64)
    net(x, t)  # now the weight is the output of an operation
    denoiser = flare.Denoiser(net)
    torch.testing.assert_close(denoiser(x, t), net(x, t))
    u = torch.randn(len(x), 1, 3, dtype=torch.float64)
    whole = flare.subsets.everything(denoiser)
    expected = torch.autograd.grad(net(x[:1], t[:1]), list(net.parameters()), u[0])
    ours = pull_rows(denoiser, whole, x, t, u)[0, 0]
    named = dict(zip(dict(net.named_parameters()), expected, strict=True))
    torch.testing.assert_close(ours, whole.gather(named))
    copy = denoiser.with_params({"second.weight_g": 2 * net.second.weight_g.detach()})
    assert not torch.allclose(copy(x, t), net(x, t))


def test_gradient_checkpointing_of_diffusers():
    diffusers = pytest.importorskip("diffusers")
    rows = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        net = diffusers.UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
            block_out_channels=(4, 8), down_block_types=("DownBlock2D",) * 2,
            up_block_types=("UpBlock2D",) * 2,
        )  # fmt: skip
        if checkpointed:
            net.enable_gradient_checkpointing()
        denoiser = flare.Denoiser(net)
        x, t = torch.randn(3, 1, 8, 8), torch.tensor([3, 50, 700])
        subset = flare.subsets.random(denoiser, count=50)
        rows.append(pull_rows(denoiser, subset, x, t, torch.ones(3, 2, 1, 8, 8)))
    torch.testing.assert_close(*rows)


class Writes(TinyNet):
    def forward(self, x, t, **cond):
        return super().forward(x.mul_(2), t, **cond)


def test_networks_that_write_to_their_inputs_are_refused():
    data, schedule = torch.randn(60, 3), flare.schedules.cosine(10)
    with pytest.raises(ValueError, match="Writes writes to its inputs in place"):
        flare.fit(Writes((3,), 4), data, schedule)


class Sorts(TinyNet):
    def forward(self, x, t, **cond):
        order = t.argsort()
        return super().forward(x[order], t[order], **cond)


def test_networks_that_reorder_their_rows_are_refused():
    denoiser = flare.Denoiser(Sorts((3,), 4))
    pairs = flare.noising.pairs(torch.randn(60, 3), flare.schedules.cosine(10), n=50)
    with pytest.raises(ValueError, match="it mixes or reorders samples"):
        flare.posteriors.dense(denoiser, flare.subsets.everything(denoiser), pairs)


def test_gradients_in_inference_mode_are_refused():
    denoiser = flare.Denoiser(TinyNet((3,), 4))
    x, t = inputs((3,))
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"use torch\.no_grad instead"):
        pull_rows(denoiser, flare.subsets.everything(denoiser), x, t, x[:, None])
