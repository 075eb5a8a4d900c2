"""Peak memory of `flare.fit` on images that take most of a gigabyte, beyond the images themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import flare

from .harness import command, measure, peak

N, SHAPE = 16_000, (3, 64, 64)


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
    """Fit, and write it down."""
    n = N // 10 if quick else N
    data = torch.empty(n, *SHAPE).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    net = Small()
    net(data[:2], torch.zeros(2))
    before = peak()
    scorer, took = measure(
        lambda: flare.fit(net, data, flare.schedules.cosine(1000), pairs=5000, progress=False)
    )
    size = data.numel() * data.element_size() / 1024**3
    return (
        f"## Memory of a fit on images\n\n{n:,} images of {' × '.join(map(str, SHAPE))} take {size:.2f} GB. "
        f"`flare.fit` with a convolutional network of {scorer.denoiser.parameter_count:,} parameters peaked "
        f"at {peak() - before:.2f} GB beyond them ({took:.0f} CPU seconds)."
    )


if __name__ == "__main__":
    command("images", __doc__, section)
