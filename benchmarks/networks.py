"""What the benchmarks measure on: shipped models, and a small UNet, each with a posterior."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import flare

BATCH = 4000


@dataclass(frozen=True)
class Case:
    """A network with what it needs to be sampled and scored.

    Attributes:
        name: for the table.
        net: the bare network.
        denoiser: the same, ours.
        steps: a sampler's table.
        posterior: over some of its parameters.
        shape: of a sample.
        n: how many samples.
    """

    name: str
    net: nn.Module
    denoiser: flare.Denoiser
    steps: flare.samplers.Steps
    posterior: flare.posteriors.Posterior
    shape: tuple[int, ...]
    n: int

    def sample(self, **options: object) -> flare.Result:
        """Scored samples in one batch: measuring the memory of a batch is not what is timed."""
        options = {"n": self.n, "shape": self.shape, "batch_size": BATCH, **options}
        return flare.sample(self.denoiser, self.steps, self.posterior, **options)

    def in_float64(self) -> Case:
        """The same with a float64 copy of the network, which the posterior then speaks of."""
        denoiser, fitted = self.denoiser.wide(torch.float64), self.posterior
        origin = replace(fitted.origin, fingerprint=denoiser.fingerprint())
        return replace(self, denoiser=denoiser, posterior=replace(fitted, origin=origin))

    def plain(self) -> flare.Result:
        """The same samples without a score."""
        return flare.sample(self.denoiser, self.steps, n=self.n, shape=self.shape, batch_size=BATCH)

    def bare(self) -> Callable[[], None]:
        """The network calls of sampling and nothing else."""
        x = torch.randn(self.n, *self.shape)
        times = [torch.tensor([t.level.time]).expand(self.n) for t in self.steps.transitions]

        def calls() -> None:
            with torch.no_grad():
                for t in times:
                    self.net(x, t)

        return calls


def shipped(
    name: str, n: int, steps: int | None = None, count: int = 400, dtype: torch.dtype = torch.float32
) -> Case:
    """A shipped model with a calibrated dense posterior over `count` random parameters."""
    model = flare.bench.load(name)
    net = copy.deepcopy(model.denoiser.module).to(dtype)
    denoiser = flare.Denoiser(net, model.denoiser.prediction)
    subset = flare.subsets.random(denoiser, count=min(count, denoiser.parameter_count), seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=4000, seed=0, weighting=model.weighting)
    posterior = flare.posteriors.dense(denoiser, subset, pairs)
    table = model.sampler("ddpm" if steps is None else "ddim", steps)
    return Case(name, net, denoiser, table, posterior, model.shape, n)


def unet(n: int, steps: int = 10, size: int = 32, dtype: torch.dtype = torch.float32) -> Case:
    """A UNet2DModel of 0.7 million parameters as it is initialized, with the prior as its posterior."""
    from diffusers import DDIMScheduler

    net = make_unet(size).to(dtype)
    flow = flare.from_diffusers((net, DDIMScheduler()))
    subset = flare.subsets.random(flow.denoiser, count=2000, seed=0)
    data = torch.rand(32, 3, size, size) * 2 - 1
    pairs = flare.noising.pairs(data, flow.schedule, n=32, seed=0, batch_size=16)
    posterior = flare.posteriors.diagonal(flow.denoiser, subset, pairs, 100.0, 1.0)
    return Case("UNet2DModel", Answer(net), flow.denoiser, flow.steps(steps), posterior, (3, size, size), n)


def make_unet(size: int = 32) -> nn.Module:
    """A UNet2DModel of 0.7 million parameters as it is initialized."""
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=size, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32, 64),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"), norm_num_groups=8,
    ).eval()  # fmt: skip


class Answer(nn.Module):
    """A diffusers model that answers with a tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The prediction."""
        return self.net(x, t).sample
