"""The cost of the verdict with many training images of 3 × 64 × 64."""

from __future__ import annotations

import warnings

import torch

import flare

from .costs import VERDICT_TARGETS, fit_unet
from .harness import command, compare, judge

N, SHAPE = 20_000, (3, 64, 64)


def section(quick: bool = False) -> str:
    """Judge and draw in turns, and write it down."""
    warnings.simplefilter("ignore")  # about random weights
    n, few, repeats = (N // 20 if quick else N), 2, 2
    data = torch.empty(n, *SHAPE).uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    model, scorer = fit_unet(data, SHAPE[1], few=4)
    x = data[:few]
    ratio = compare(
        lambda: scorer.score(x, batch_size=few),
        lambda: flare.sample(model.denoiser, model.steps(), n=few, shape=SHAPE, batch_size=few),
        repeats,
    )
    kept = scorer.training.spaces["neighbors"].points.shape
    images = " × ".join(map(str, SHAPE))
    return (
        f"## Many images\n\nThe verdict of a UNet with {model.denoiser.parameter_count:,} random weights on "
        f"{few} images of {images}, with {kept[0]:,} of {n:,} random training images kept as {kept[1]:,} "
        f"numbers each, takes {ratio.short} times plain sampling in {len(model.steps())} steps: the median "
        f"of {repeats} turns, with the least and the largest.\n\n"
        + judge(f"UNet, {n:,} images of {images}: verdict", ratio.median, VERDICT_TARGETS["UNet"])
    )


if __name__ == "__main__":
    command("images", __doc__, section)
