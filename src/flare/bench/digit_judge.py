"""The judge of generated digits: a small classifier of real digits with one more class, "no digit".

It is trained on the real training images, with their ten classes, and on images that are no digit: blends of
two digits, and the upper half of one above the lower half of another. A sample is bad if it looks more like
no digit than 97.5% of held-out real images do. The judge knows neither the diffusion model nor any score.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .datasets import TRAINING_DIGITS, labeled_digits

QUANTILE = 0.975  # of held-out real images; samples beyond it are bad
NONE = 10  # the class of what is no digit
STEPS, BATCH = 400, 128


@dataclass(frozen=True, eq=False)
class DigitJudge:
    """A classifier that finds images of 8 × 8 that are no digit.

    Attributes:
        net: The network, from images (n, 1, 8, 8) to the logits of 11 classes.
        limit: The log-odds of "no digit" that 97.5% of held-out real images stay within.
        accuracy: The share of held-out real images whose digit it recognizes.
    """

    net: nn.Module
    limit: float
    accuracy: float

    @torch.no_grad()
    def doubt(self, images: Tensor) -> Tensor:
        """Log-odds that an image is no digit, (n,)."""
        logits = self.net(images.float())
        return logits[:, NONE] - logits[:, :NONE].logsumexp(1)

    def find_bad(self, images: Tensor) -> Tensor:
        """Which images are no digit, (n,) bool."""
        return self.doubt(images) > self.limit


def train_judge(seed: int = 0) -> DigitJudge:
    """Train a judge on real digits, in seconds; the limit comes from held-out digits.

    >>> judge = flare.bench.digit_judge.train_judge()
    >>> bad = judge.find_bad(flare.bench.datasets.digits(100))
    """
    images, labels = labeled_digits()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        net = _make_network()
        _train(net, images[:TRAINING_DIGITS], labels[:TRAINING_DIGITS])
    net.eval().requires_grad_(False)
    held_out, known = images[TRAINING_DIGITS:], labels[TRAINING_DIGITS:]
    accuracy = (net(held_out)[:, :NONE].argmax(1) == known).double().mean().item()
    judge = DigitJudge(net, 0.0, accuracy)
    return DigitJudge(net, judge.doubt(held_out).quantile(QUANTILE).item(), accuracy)


def make_none(images: Tensor, labels: Tensor) -> Tensor:
    """Images that are no digit, one per image, from pairs of images with different labels.

    >>> images, labels = flare.bench.datasets.labeled_digits()
    >>> flare.bench.digit_judge.make_none(images[:50], labels[:50]).shape
    torch.Size([50, 1, 8, 8])
    """
    order = torch.randperm(len(images))
    for _ in range(20):  # partners of the same class draw again
        same = labels == labels[order]
        order[same] = torch.randint(len(images), (int(same.sum()),))
    other = images[order]
    share = 0.35 + 0.3 * torch.rand(len(images), 1, 1, 1)
    stitched = torch.cat([images[:, :, :4], other[:, :, 4:]], dim=2)
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, share * images + (1 - share) * other, stitched)


def _make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 32, 3, 2, padding=1), nn.SiLU(),
        nn.Conv2d(32, 48, 3, 2, padding=1), nn.SiLU(), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(48 * 4, 64), nn.SiLU(), nn.Linear(64, NONE + 1),
    )  # fmt: skip


def _train(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    decay = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(images), (BATCH,))
        real, own = images[rows], labels[rows]
        none = make_none(real, own)
        x = torch.cat([real, none])
        target = torch.cat([own, torch.full_like(own, NONE)])
        loss = nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
