"""HyperDM: a hypernetwork from one number z to all weights of the denoiser; its draws are the models.

>>> hyper = HyperNetwork(net, seed=0)                                        # doctest: +SKIP
>>> for _ in train(Training(hyper, data, schedule, config)): ...             # doctest: +SKIP
>>> result = sample(members(hyper, 10), steps, n=500, shape=(10,))           # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.noise_streams import NoiseStreams, mix_seed
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..results.result import Result
from ..sampling.sample import sample as draw


class HyperNetwork(nn.Module):
    """θ = θ_0 + W·h(z) for z ~ N(0, 1): called like the network itself, with a new z a call in training.

    It is trained by `flare.training` as any other network is: the plain loss, one z a batch.

    Args:
        net: the denoiser; its present weights are where all models start.
        width: of the two hidden layers of h.
        seed: of the z's.
    """

    calls: Tensor

    def __init__(self, net: nn.Module, width: int = 16, seed: int = 0) -> None:
        super().__init__()
        self._shapes = {name: p.shape for name, p in net.named_parameters()}
        # not registered: its weights are the hypernetwork's output
        self._net = [net]
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        self.hidden = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, len(start))
        with torch.no_grad():
            self.head.bias.copy_(start)
            self.head.weight.mul_(0.1)
        self.seed = seed
        # counted and kept in the state, so that a run which resumes draws the same z's
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def weights(self, z: Tensor) -> dict[str, Tensor]:
        """The weights of the model of z (1,), by name."""
        parts = self.head(self.hidden(z)).split([shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def forward(self, x: Tensor, t: Tensor, **cond: Any) -> Tensor:
        """F(x, t) of a model that is drawn at this call; out of training, of the model of z = 0."""
        z = torch.zeros(1)
        if self.training:
            self.calls += 1
            generator = torch.Generator().manual_seed(mix_seed(self.seed, int(self.calls)))
            z = torch.randn(1, generator=generator)
        answer = functional_call(self._net[0], self.weights(z.to(x)), (x, t), cond)
        return getattr(answer, "sample", answer)  # as models of diffusers give it


def members(
    hyper: HyperNetwork, count: int = 10, prediction: str = "epsilon", seed: int = 0
) -> list[Denoiser]:
    """Models of a trained hypernetwork, one a draw of z."""
    generator = torch.Generator().manual_seed(mix_seed(seed, -1))
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
    **options: Any,
) -> Result:
    """Samples of the first model, with the epistemic variance Var_i mean_j x_0 over models i, noises j.

    With shared noise the j-th noise is the same for all models: an exact variance over models, for any
    number of repeats. With noises of their own, as HyperDM has it, the means differ by chance too, and
    the estimate is too large by the aleatoric variance / repeats. The start x_T is shared in both.

    Args:
        models: M ≥ 2 of them.
        steps: a sampler's table.
        n: how many samples.
        shape: of one sample.
        repeats: noises a model, N.
        shared: whether the models share their noises.
        seed: of the noise.
        **options: of `flare.sample`, such as cond, start and batch_size.
    """
    if len(models) < 2:
        raise ValueError(f"a variance over models needs at least 2 of them, got {len(models)}.")
    start = options.pop("start", None)
    if start is None:
        if n is None or shape is None:
            raise ValueError("give n and shape, for instance n=1000, shape=(80,), or start=x_T.")
        start = NoiseStreams(seed, options.get("first", 0), n, shape, 1).next() * steps.start
    # (noises, models): one seed a noise, or one a noise and model
    seeds = [
        [mix_seed(seed, j if shared else j * len(models) + i) for i in range(len(models))]
        for j in range(require_positive_int("repeats", repeats))
    ]
    ends = torch.stack(
        [
            torch.stack(
                [
                    draw(model, steps, start=start, seed=own, **options).samples
                    for model, own in zip(models, row, strict=True)
                ]
            )
            for row in seeds
        ]
    )  # (N, M, n, *shape)
    variance = ends.mean(0).var(0)
    return Result(ends[0, 0], variance, {"hyperdm": variance.flatten(1).sum(1)})
