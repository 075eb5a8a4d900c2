"""Gradients of random networks that do all that could mislead us, against one backward pass per row.

Layers are shared, tied, sliced, gated, hooked, subclassed and used without being called; rows are sorted,
reversed, doubled and moved to another axis; parts run without gradients, in place or checkpointed.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from losses import loss_gradients
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import flare
from flare import subsets
from flare.autodiff import vjp

WIDTH, ROWS = 4, 6


class Five(nn.Linear):
    def forward(self, x):
        return F.linear(x, 5 * self.weight, self.bias)


class Standardized(nn.Conv1d):
    def _conv_forward(self, x, weight, bias):
        weight = (weight - weight.mean((1, 2), keepdim=True)) / (weight.std((1, 2), keepdim=True) + 0.1)
        return super()._conv_forward(x, weight, bias)


class Counting(nn.Module):
    """A parameter of its own, and a buffer that every call assigns anew."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.scale


class Recomputed(torch.autograd.Function):
    """A checkpoint by hand, which calls its layer again in the backward pass."""

    @staticmethod
    def forward(ctx, layer, h, *params):
        ctx.layer, ctx.h, ctx.params = layer, h, params
        with torch.no_grad():
            return layer(h)

    @staticmethod
    def backward(ctx, g):
        h = ctx.h.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(h)
        return None, *torch.autograd.grad(y, [h, *ctx.params], g)


def attend(net, h, mask):
    q = net.a(h)[:, None, :, None]
    k = h[:, None, :, None] if mask is not None else net.a.weight[None, :, :1]
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)[:, 0, :, 0]


def triple(module, inputs, outputs):
    return None if inputs[0] is None else (3 * inputs[0],)


def hook(h):
    if h.requires_grad:
        h.register_hook(lambda g: 3 * g)
    return h


def store(net, h):
    net.last = h
    return h


def by_order(layer, h, order):
    return layer(h[order])[order.argsort()]


def mix(layer, h, t):
    """A row of the batch that is not its own, as if by mistake; a row alone has itself."""
    return layer(h) + 0.5 * layer(h.roll(1, 0)).roll(-1, 0)


OPS = {
    "call": lambda s, h, t: s.a(h),
    "twice": lambda s, h, t: s.a(torch.tanh(s.a(h))),
    "tied": lambda s, h, t: s.a(h) + s.tied(torch.sin(h)),
    "functional": lambda s, h, t: F.linear(h, s.b.weight, s.b.bias),
    "both": lambda s, h, t: s.b(h) * F.linear(h, s.b.weight, s.b.bias),
    "slice": lambda s, h, t: F.pad(F.linear(h, s.c.weight[:2]), (0, 2)) + s.c(h),
    "transposed": lambda s, h, t: s.b(h) @ s.b.weight,
    "norm of a weight": lambda s, h, t: s.a(h) / (1 + s.a.weight.square().sum()),
    "late": lambda s, h, t: torch.where(t[:, None] > 500, F.linear(h, s.b.weight), s.c(h)),
    "relu gate": lambda s, h, t: s.a(h) + torch.relu(h[:, :1]) * F.linear(h, s.c.weight),
    "gate": lambda s, h, t: s.a(h) + s.gate * F.linear(h, s.a.weight),
    "buffer gate": lambda s, h, t: s.b(h) + s.open * F.linear(h, s.b.weight),
    "branch on t": lambda s, h, t: F.linear(h, s.c.weight) if (t > 500).any() else s.c(h),
    "branch on the batch": lambda s, h, t: by_order(s.a, h, t.argsort()) if len(h) > 1 else s.a(h),
    "sort": lambda s, h, t: by_order(s.a, h, t.argsort()),
    "reverse": lambda s, h, t: s.b(h.flip(0)).flip(0),
    "mix": lambda s, h, t: mix(s.c, h, t),
    "double": lambda s, h, t: sum(s.a(torch.cat([h, -h])).chunk(2)),
    "rows last": lambda s, h, t: s.b(h[None].expand(3, *h.shape)).mean(0),
    "one token": lambda s, h, t: torch.stack([s.c(row) for row in h]),
    "folded": lambda s, h, t: s.a(h.view(-1, 2, 2).repeat(1, 1, 2).view(-1, 4)).view(len(h), 2, 4).sum(1),
    "layer norm": lambda s, h, t: s.norm(h),
    "group norm": lambda s, h, t: s.group(h),
    "convolution": lambda s, h, t: s.conv(h[:, None])[:, 0],
    "standardized": lambda s, h, t: s.standardized(h[:, None])[:, 0],
    "other weights": lambda s, h, t: functional_call(s.b, {"weight": 2 * s.b.weight}, (h,)),
    "attention": lambda s, h, t: attend(s, h, (h[:, None, None] > 0) | torch.eye(WIDTH, dtype=torch.bool)),
    "keys without rows": lambda s, h, t: attend(s, h, None),
    "backward hook": lambda s, h, t: s.tripled(h),
    "hook of a tensor": lambda s, h, t: hook(s.a(h)),
    "padding": lambda s, h, t: h + s.padded(t % 3) + F.embedding(t % 3, s.embedding.weight, padding_idx=0),
    "broadcast bias": lambda s, h, t: s.broadcast(h),
    "own checkpoint": lambda s, h, t: Recomputed.apply(s.b, s.a(h), *s.b.parameters()),
    "derivative": lambda s, h, t: torch.func.grad(lambda z: s.a(z).square().sum())(h),
    "stored": lambda s, h, t: store(s, s.c(h)),
    "five": lambda s, h, t: s.five(h),
    "hook": lambda s, h, t: s.hooked(h),
    "counting": lambda s, h, t: s.counting(h),
    "embedding": lambda s, h, t: h + s.embedding(t % 3),
    "weight norm": lambda s, h, t: s.normed(h),
    "in place": lambda s, h, t: s.a(h).mul_(2).relu_(),
    "no gradients": lambda s, h, t: s.a(h) + frozen(s.b, h),
    "detached": lambda s, h, t: s.a(h) + s.b(h).detach(),
    "checkpoint": lambda s, h, t: checkpoint(s.b, h, use_reentrant=False),
    "reentrant checkpoint": lambda s, h, t: checkpoint(s.c, h, use_reentrant=True),
}  # fmt: skip


def frozen(layer, h):
    with torch.no_grad():
        return layer(h)


class Random(nn.Module):
    """A chain of random operations, some of them in a residual connection."""

    def __init__(self, names, gate):
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.a.weight
        self.norm, self.group, self.conv = (
            nn.LayerNorm(WIDTH),
            nn.GroupNorm(2, WIDTH),
            nn.Conv1d(1, 1, 3, padding=1),
        )
        self.standardized, self.five, self.counting = (
            Standardized(1, 1, 3, padding=1),
            Five(WIDTH, WIDTH),
            Counting(),
        )
        self.hooked = nn.Linear(WIDTH, WIDTH)
        self.hooked.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
        self.hooked.register_forward_hook(lambda module, _, out: out * module.weight.sum())
        self.embedding, self.padded = nn.Embedding(3, WIDTH), nn.Embedding(3, WIDTH, padding_idx=1)
        self.tripled, self.broadcast = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.tripled.register_full_backward_hook(triple)
        self.broadcast.bias = nn.Parameter(torch.rand(1))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.gate = nn.Parameter(torch.tensor(gate))
        self.register_buffer("open", torch.tensor(gate))
        self.names = names

    def forward(self, x, t):
        h = x + t[:, None] / 1000
        for number, name in enumerate(self.names):
            out = OPS[name](self, h, t)
            h = torch.tanh(out) + h if number % 2 else out
        return h


def rows_alone(net, x, t, u):
    """Jᵀu of every row by one call and one backward pass, over all parameters."""
    found = []
    for row in range(len(x)):
        net.zero_grad(set_to_none=True)
        state = x[row : row + 1].clone().requires_grad_()  # reentrant checkpoints need it
        net(state, t[row : row + 1]).backward(u[row : row + 1])
        params = dict(net.named_parameters())
        found.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in params.items()})
    return {name: torch.stack([each[name] for each in found]) for name in found[0]}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # a checkpoint, without gradients
@pytest.mark.parametrize("part", range(8))
def test_no_wrong_gradient(part):
    for seed in range(part * 25, part * 25 + 25):
        torch.manual_seed(seed)
        draw = random.Random(seed)
        names = draw.sample(sorted(OPS), draw.randint(1, 4))
        net = Random(names, draw.choice([0.0, 1e-5, 1.0])).double().eval()
        x, t = torch.randn(ROWS, WIDTH).double(), torch.randint(0, 1000, (ROWS,))
        u = torch.randn(ROWS, WIDTH).double()
        denoiser = flare.Denoiser(net)
        whole = subsets.everything(denoiser)
        truth = rows_alone(net, x, t, u)
        for subset in (whole, subsets.random(denoiser, count=9, seed=seed), subsets.sketch(denoiser, 5)):
            compare(names, vjp.pull_rows(denoiser, subset, x, t, u[:, None])[:, 0], subset.gather(truth, 1))
        net.gate.data.fill_(1.0)  # what opens later counts, too, even if no version tells
        net.open.fill_(1.0)
        states, y = torch.randn(2, 3, WIDTH).double(), torch.zeros(2, 3, WIDTH).double()
        ours = loss_gradients(denoiser, whole, states, t[:3], y, torch.ones(3).double())
        for own, states_of_one in zip(ours, states, strict=True):
            with torch.no_grad():
                f = torch.cat([net(x[None], at[None]) for x, at in zip(states_of_one, t[:3], strict=True)])
            rows = whole.gather(rows_alone(net, states_of_one, t[:3], f), 1)
            compare(names, own, rows.sum(0))
        torch.testing.assert_close(denoiser.wide(torch.float64)(x[:1], t[:1]), net(x[:1], t[:1]))


def compare(names, ours, truth):
    scale = truth.abs().max().clamp(min=1).item()
    torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-11 * scale, msg=lambda m: f"{names}: {m}")
