"""HyperDM: a hypernetwork maps a number z to all weights of the denoiser; each draw of z is a model.

`flare.bench.baselines.ensemble` of the models is its epistemic variance, with shared noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import flare


class HyperNetwork(nn.Module):
    """θ = θ_0 + W·h(z) for z ~ N(0, 1), called like the network itself; training draws a new z per call.

    `flare.training` trains it like any other network: the plain loss, one z per batch.


    Args:
        net: The denoiser; its current weights are θ_0.
        width: The width of the two hidden layers of h.
        seed: Random seed for the weights of h and for z.
    """

    calls: Tensor

    def __init__(self, net: nn.Module, width: int = 16, seed: int = 0) -> None:
        super().__init__()
        self._shapes = {name: p.shape for name, p in net.named_parameters()}
        # in a list, so that its parameters are not registered: they are the hypernetwork's output
        self._net = [net]
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
            self.head = nn.Linear(width, len(start))
        with torch.no_grad():
            self.head.bias.copy_(start)
            self.head.weight.mul_(0.1)
        self.seed = seed
        # a buffer, so that a resumed run draws the same z
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def weights(self, z: Tensor) -> dict[str, Tensor]:
        """The weights of the model of z (1,), by name."""
        parts = self.head(self.hidden(z)).split([shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def forward(self, x: Tensor, t: Tensor, **cond: Any) -> Tensor:
        """f(x, t) of a newly drawn model in training mode, of the model z = 0 otherwise."""
        z = torch.zeros(1)
        if self.training:
            self.calls += 1
            generator = torch.Generator().manual_seed(mix_seed(self.seed, int(self.calls)))
            z = torch.randn(1, generator=generator)
        out = functional_call(self._net[0], self.weights(z.to(x)), (x, t), cond)
        return getattr(out, "sample", out)  # diffusers models return an object with .sample


def members(
    hyper: HyperNetwork, count: int = 10, prediction: str = "epsilon", seed: int = 0
) -> list[flare.Denoiser]:
    """Models of a trained hypernetwork, one per draw of z.

    >>> hyper = flare.bench.baselines.hyperdm.HyperNetwork(net, seed=0)
    >>> len(flare.bench.baselines.hyperdm.members(hyper, 3))
    3
    """
    generator = torch.Generator().manual_seed(mix_seed(seed, -1))
    base = flare.Denoiser(hyper._net[0], prediction)
    with torch.no_grad():
        zs = torch.randn(count, 1, generator=generator)
        return [base.with_params(hyper.weights(z)) for z in zs]


def mix_seed(seed: int, index: int) -> int:
    """A 63-bit seed from the pair, by the finalizer of splitmix64."""
    z = 0
    for word in (seed, index):
        z = (z + word + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1
