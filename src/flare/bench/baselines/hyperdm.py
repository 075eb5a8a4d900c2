"""HyperDM: a hypernetwork maps a number z to all weights of the denoiser; each draw of z is a model.

>>> hyper = flare.bench.baselines.hyperdm.HyperNetwork(net, seed=0)
>>> config = flare.training.TrainConfig(steps=2, batch_size=8)
>>> for frame in flare.training.train(flare.training.Training(hyper, data, schedule, config)):
...     pass
>>> models = flare.bench.baselines.hyperdm.members(hyper, 3)
>>> result = flare.bench.baselines.hyperdm.sample(models, steps, n=4, shape=(10,))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...core.noise_streams import DIRECTIONS_STREAM, NoiseStreams, mix_seed
from ...core.validation import require_positive_int
from ...diffusion.samplers import Steps
from ...network.denoiser import Denoiser
from ...results.result import Result
from .rollouts import roll_out


class HyperNetwork(nn.Module):
    """θ = θ_0 + W·h(z) for z ~ N(0, 1), called like the network itself; training draws a new z per call.

    `flare.training` trains it like any other network: the plain loss, one z per batch.

    >>> hyper = flare.bench.baselines.hyperdm.HyperNetwork(net, seed=0)
    >>> config = flare.training.TrainConfig(steps=2, batch_size=8)
    >>> for frame in flare.training.train(flare.training.Training(hyper, data, schedule, config)):
    ...     pass

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
) -> list[Denoiser]:
    """Models of a trained hypernetwork, one per draw of z.

    >>> hyper = flare.bench.baselines.hyperdm.HyperNetwork(net, seed=0)
    >>> len(flare.bench.baselines.hyperdm.members(hyper, 3))
    3
    """
    generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
    base = Denoiser(hyper._net[0], prediction)
    with torch.no_grad():
        zs = torch.randn(require_positive_int("count", count), 1, generator=generator)
        return [base.with_params(hyper.weights(z)) for z in zs]


def sample(
    models: Sequence[Denoiser],
    steps: Steps,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    repeats: int = 1,
    shared: bool = True,
    seed: int = 0,
    start: Tensor | None = None,
    first: int = 0,
    **sampling: Any,
) -> Result:
    """Draw samples of the first model, with the epistemic variance Var_i mean_j x_0 over models i and
    noises j.

    With shared noise, all models see the same j-th noise, and the variance over models is exact for any
    number of repeats. With independent noise, as in HyperDM, the means also differ by chance, and the
    estimate is too large by the aleatoric variance / repeats. The start x_T is shared in both cases.

    >>> hyper = flare.bench.baselines.hyperdm.HyperNetwork(net, seed=0)
    >>> models = flare.bench.baselines.hyperdm.members(hyper, 3)
    >>> flare.bench.baselines.hyperdm.sample(models, steps, n=4, shape=(10,)).variance.shape
    torch.Size([4, 10])

    Args:
        models: M ≥ 2 models.
        steps: The table of a sampler.
        n: The number of samples.
        shape: The shape of one sample.
        repeats: Noises per model, N.
        shared: Whether the models share the noise.
        seed: Random seed for the noise.
        start: x_T, (n, *shape), instead of n and shape.
        first: The index of the first sample.
        **sampling: Keyword arguments of `flare.sample`, such as cond and batch_size.
    """
    if start is None:
        if n is None or shape is None:
            raise ValueError("give n and shape, for instance n=1000, shape=(80,), or start=x_T.")
        start = NoiseStreams(seed, first, n, shape, 1).next() * steps.start
    count = len(models)
    # (N, M): one seed per noise if shared, otherwise one per noise and model
    seeds = [
        [mix_seed(seed, j if shared else j * count + i) for i in range(count)]
        for j in range(require_positive_int("repeats", repeats))
    ]
    # (N, M, n, *shape)
    ends = torch.stack([roll_out(models, steps, row, start=start, first=first, **sampling) for row in seeds])
    variance = ends.mean(0).var(0)
    return Result(ends[0, 0], variance, {"hyperdm": variance.flatten(1).sum(1)})
