"""Is first order enough? The tangent rule against the definition, at the posterior's own scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import positive_int
from .denoiser import Cond, Denoiser
from .posteriors import Posterior
from .progress import Progress
from .samplers import Steps
from .sampling import sample


@dataclass(frozen=True)
class Linearization:
    """Tangent against Monte Carlo on the same samples and the same draws of the posterior.

    Attributes:
        ratio: the median over the samples of tangent variance / Monte-Carlo variance (traces).
        correlation: Spearman's rank correlation of the two.
        tangent: the traces by the tangent rule, (n,); without the samples that either rule lost.
        monte_carlo: the traces by Monte Carlo, (n,).
        draws: how many models were drawn.
    """

    ratio: float
    correlation: float
    tangent: Tensor
    monte_carlo: Tensor
    draws: int

    @property
    def verdict(self) -> str:
        """What the two figures mean, in plain words."""
        size, rank = 0.8 <= self.ratio <= 1.25, self.correlation >= 0.9
        if size and rank:
            return "First order is enough: variances and ranking agree with rerun models."
        if rank:
            return (
                f"The ranking can be trusted, the size cannot: first order gives {self.ratio:.2g} times the "
                "variance of rerun models. Filter by the score; do not read it as a variance."
            )
        return (
            "First order is not enough at this scale: the ranking differs from that of rerun models "
            f"(correlation {self.correlation:.2f}). Raise prior_precision or scale, or use "
            "rule='monte_carlo'."
        )

    def __str__(self) -> str:
        return (
            f"tangent/Monte Carlo = {self.ratio:.3g}, rank correlation {self.correlation:.3f} "
            f"({len(self.tangent)} samples, {self.draws} draws). {self.verdict}"
        )


def check_linearization(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int = 32,
    shape: Sequence[int] | None = None,
    *,
    draws: int = 64,
    start: Tensor | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> Linearization:
    """Compare the tangent rule with Monte Carlo on a handful of samples with shared noise and draws.

    Args:
        denoiser: the network.
        steps: the sampler's table.
        posterior: at the scale that is to be judged.
        n: how many samples; at least 3.
        shape: of one sample.
        draws: how many models to rerun; the same draws are the tangent's directions.
        start: x_T, instead of noise from the seed.
        cond: keyword arguments of the network.
        seed: of the noise and the draws.
        progress: wraps the frames of both runs.
    """
    if positive_int("n", n if start is None else len(start)) < 3:
        raise ValueError("a rank correlation needs at least 3 samples; give n=32.")
    tangent, definition = (
        sample(
            denoiser,
            steps,
            posterior,
            None if start is not None else n,
            shape,
            rule=rule,
            score="trace",
            directions=draws,
            start=start,
            cond=cond,
            seed=seed,
            progress=progress,
        ).score.double()
        for rule in ("tangent", "monte_carlo")
    )
    found = tangent.isfinite() & definition.isfinite()  # either may lose a sample that the other has
    tangent, definition = tangent[found], definition[found]
    moved = definition > 0
    if not moved.any():
        raise ValueError("no sample moves at all: every one of them is clipped, or the posterior is a point.")
    return Linearization(
        ratio=float((tangent / definition)[moved].median()),
        correlation=spearman(tangent, definition),
        tangent=tangent,
        monte_carlo=definition,
        draws=draws,
    )


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two vectors without ties."""
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])
