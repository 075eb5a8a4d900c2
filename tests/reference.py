"""Oracles and small networks; nothing here is built from the code that it checks."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyNet(nn.Module):
    """A random smooth network for samples of any shape, with time features and a condition."""

    def __init__(self, shape: tuple[int, ...], width: int = 16, scale: float = 0.5) -> None:
        super().__init__()
        d = int(torch.Size(shape).numel())
        self.first = nn.Linear(d + 1, width)
        self.second = nn.Linear(width, d)
        with torch.no_grad():
            self.second.weight.mul_(scale)

    def forward(self, x: Tensor, t: Tensor, shift: Tensor | None = None) -> Tensor:
        time = (t.to(x.dtype) / 50).reshape(-1, 1)
        hidden = torch.tanh(self.first(torch.cat([x.flatten(1), time], dim=1)))
        if shift is not None:
            hidden = hidden + shift.reshape(-1, 1)
        return self.second(hidden).reshape(x.shape)


class Backward(torch.autograd.Function):
    """An operation with a backward derivative alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class GivenNoise:
    """Noise from a generator, one draw a call: how diffusers' schedulers consume theirs."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.shape, self.generator = shape, torch.Generator().manual_seed(seed)

    def next(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Equal up to `tolerance`, relative to the largest value."""
    scale = theirs.abs().max().clamp(min=1.0)
    error = ((ours - theirs).abs().max() / scale).item()
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def naive_jacobian(net: nn.Module, x: Tensor, t: Tensor, **cond: Tensor) -> Tensor:
    """∂f/∂θ for every sample over all parameters, (B, d, p), one backward pass a row."""
    samples = []
    for i in range(len(x)):
        own = {k: v[i : i + 1] for k, v in cond.items()}
        out = net(x[i : i + 1], t[i : i + 1], **own).flatten()
        rows = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(o, list(net.parameters()), retain_graph=True)]
            )
            for o in out
        ]
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def flat_index(subset, net: nn.Module) -> Tensor:
    """A subset's positions in the concatenation of all parameters."""
    found, offset = [], 0
    for name, p in net.named_parameters():
        if name in subset.indices:
            found.append(subset.indices[name] + offset)
        offset += p.numel()
    return torch.cat(found)


def small_problem(
    shape=(3,), seed=0, width=6, n=40, weighting="min_snr", prediction="epsilon", batch_size=16
):
    """A float64 network, its denoiser and n pairs of random data: (net, denoiser, pairs)."""
    import flare

    torch.manual_seed(seed)
    net = TinyNet(shape, width).double()
    data = torch.randn(30, *shape, dtype=torch.float64)
    pairs = flare.noising.pairs(
        data, flare.schedules.cosine(20), n=n, seed=seed, weighting=weighting, batch_size=batch_size
    )
    return net, flare.Denoiser(net, prediction), pairs


def naive_ggn(net: nn.Module, pairs, prediction: str = "epsilon") -> tuple[Tensor, float]:
    """(1/n) Σ w JᵀJ over all parameters, and the weighted residual variance, pair by pair."""
    p = sum(q.numel() for q in net.parameters())
    H, error, n = torch.zeros(p, p, dtype=torch.float64), 0.0, 0
    for batch in pairs.batches(prediction, torch.float64):
        J = naive_jacobian(net, batch.x, batch.t)
        with torch.no_grad():
            residual = net(batch.x, batch.t) - batch.target
        for i in range(len(J)):
            H += batch.weight[i] * J[i].T @ J[i]
            error += (batch.weight[i] * residual[i].square().mean()).item()
            n += 1
    return H / n, error / n
