"""Many training images of 3 × 64 × 64: the cost of the verdict, and the memory of a fit beyond them."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import flare

from .costs import fit_unet
from .harness import command, compare, judge, measure, peak

N, SHAPE = 20_000, (3, 64, 64)
TARGET = 0.6  # times plain sampling


class Small(nn.Module):
    """A convolutional denoiser of images."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inp = nn.Conv2d(SHAPE[0] + 1, width, 4, stride=4)
        self.body = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(2)])
        self.out = nn.ConvTranspose2d(width, SHAPE[0], 4, stride=4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, 3, 64, 64), t (B,) -> (B, 3, 64, 64)."""
        level = (t.to(x) / 1000).view(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])
        h = self.inp(torch.cat([x, level], dim=1))
        for layer in self.body:
            h = h + torch.nn.functional.silu(layer(h))
        return self.out(h)


def section(quick: bool = False) -> str:
    """Fit, judge, and write it down."""
    warnings.simplefilter("ignore")  # about random weights
    n, few = (N // 20, 1) if quick else (N, 2)
    data = torch.empty(n, *SHAPE).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    net = Small()
    net(data[:2], torch.zeros(2))
    before = peak()
    schedule = flare.schedules.cosine(1000)
    scorer, took = measure(lambda: flare.fit(net, data, schedule, pairs=1000, check=False, progress=False))
    highest, size = peak() - before, data.numel() * data.element_size() / 1024**3
    model, scorer = fit_unet(data, SHAPE[1], few=20)
    x = data[:few]
    ratio = compare(
        lambda: scorer.score(x, batch_size=few),
        lambda: flare.sample(model.denoiser, model.steps(), n=few, shape=SHAPE, batch_size=few),
        1 if quick else 3,
    )
    kept = scorer.training.spaces["neighbors"].points.shape
    images = " × ".join(map(str, SHAPE))
    return (
        f"## Many images\n\n{n:,} random images of {images} take {size:.2f} GB. `flare.fit` on 1,000 pairs "
        f"of them, with a convolutional network of {sum(p.numel() for p in net.parameters()):,} parameters, "
        f"peaked at {highest:.2f} GB beyond them ({took:.0f} CPU seconds). The verdict of a UNet with "
        f"{model.denoiser.parameter_count:,} random weights on {few} samples, with {kept[0]:,} training "
        f"images kept as {kept[1]:,} numbers each, takes {ratio.short} times plain sampling in "
        f"{len(model.steps())} steps.\n\n"
        + judge(f"{images}: the verdict over plain sampling", ratio.median, TARGET)
    )


if __name__ == "__main__":
    command("images", __doc__, section)
