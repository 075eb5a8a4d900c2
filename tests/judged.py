"""Results with a verdict, as a scorer returns them, without a network."""

from __future__ import annotations

from dataclasses import replace

import torch

import flare
from flare.results.verdict import Reference


def judge(result, worse=None, size=99, held_out=True, seed=0):
    """The result with scores of real data and a verdict.

    Samples get more doubtful with `worse` (n,); every 20th is a copy, and sample i is nearest to row 2·i.
    """
    n = len(result)
    worse = torch.linspace(0, 1, n) if worse is None else worse
    draw = torch.Generator().manual_seed(seed)
    real = {name: torch.randn(size, generator=draw).exp() for name in ("influence", "neighbors")}
    scores = {
        "influence": (torch.randn(n, generator=draw) + 4 * worse**2).exp(),
        "neighbors": (torch.randn(n, generator=draw) + 3 * worse**3).exp(),
    }
    reference = Reference(real, held_out)
    rows = torch.arange(n)
    verdict = replace(reference.verdict(scores), copies=rows % 20 == 0, nearest=2 * rows)
    return replace(result, scores={**scores, **result.scores}, verdict=verdict, reference=reference)


def fake(shape=(10,), n=60, **changes):
    """Random samples with a variance, a profile and one score."""
    draw = torch.Generator().manual_seed(1)
    variance = torch.rand(n, *shape, generator=draw) * torch.logspace(-4, 0, n).view(-1, *[1] * len(shape))
    parts = {
        "variance": variance,
        "scores": {"trace": variance.flatten(1).sum(1)},
        "profile": torch.rand(n, 7, generator=draw),
        "about": {"seed": 3},
    }
    return flare.Result(torch.randn(n, *shape, generator=draw), **(parts | changes))
