"""Is first order enough? The tangent rule against the definition, at the posterior's own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..core.conditions import Cond, check_conditions, take_rows
from ..core.progress import Progress
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..model import Model
from ..network.denoiser import Denoiser, require_denoiser
from ..posteriors import Posterior
from ..sampling.batches import Trajectories
from ..sampling.existing import default_score
from ..sampling.plan import make_plan
from ..scores import SCORES

TRUSTED = 0.9  # the least rank correlation of a ranking that can be trusted
FACTORS = tuple(10.0**k for k in range(1, 7))  # of the prior precision, tried in turn
FEW = 16  # samples and draws of these trials


@dataclass(frozen=True)
class Linearization:
    """Tangent against Monte Carlo on the same samples and the same draws of the posterior.

    Attributes:
        ratio: The median over the samples of tangent score / Monte-Carlo score.
        correlation: Spearman's rank correlation of the two.
        tangent: The scores by the tangent rule, (n,); without the samples that either rule lost.
        monte_carlo: The scores by Monte Carlo, (n,).
        draws: The number of models that were drawn.
        score: The score that was compared.
        prior_precision: The posterior's own δ.
        enough: A larger δ at which the rankings agree, the present one times a power of ten; None if it is
            not needed or not found.
    """

    ratio: float
    correlation: float
    tangent: Tensor
    monte_carlo: Tensor
    draws: int
    score: str = "trace"
    prior_precision: float = math.nan
    enough: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the ranking by the score agrees with the ranking by rerun models."""
        return self.correlation >= TRUSTED

    @property
    def finding(self) -> str:
        """The meaning of the figures, in plain words."""
        if math.isnan(self.correlation):
            return f"First order is not enough at this scale: it gives every sample the same {self.score}."
        if not self.trusted:
            return (
                f"First order is not enough at this scale: the ranking by {self.score} differs from the "
                f"ranking by rerun models (correlation {self.correlation:.2f})."
            )
        if 0.8 <= self.ratio <= 1.25:
            return f"First order is enough: {self.score} and its ranking agree with rerun models."
        return (
            f"The ranking can be trusted, the size cannot: first order gives {self.ratio:.2g} times the "
            f"{self.score} of rerun models. Filter by the score; do not read it as a variance."
        )

    def advice(self, prior: str = "prior_precision=", rule: str = "rule='monte_carlo'") -> str:
        """Advice if the ranking cannot be trusted, in terms of the caller's options; empty if it can.

        Args:
            prior: The option that sets the prior precision.
            rule: The option that reruns the models.
        """
        if self.trusted:
            return ""
        if self.enough is None:
            return f"None of the larger prior precisions that were tried is enough: use {rule}."
        return (
            f"Fit with {prior}{self.enough:.2g} ({self.enough / self.prior_precision:g} times the present "
            f"{self.prior_precision:.2g}), where the rankings agree, or use {rule}."
        )

    @property
    def verdict(self) -> str:
        """The finding and the advice."""
        return f"{self.finding} {self.advice()}".strip()

    def __str__(self) -> str:
        return (
            f"{self.score}: tangent/Monte Carlo = {self.ratio:.3g}, rank correlation {self.correlation:.3f} "
            f"({len(self.tangent)} samples, {self.draws} draws). {self.verdict}"
        )


def check_linearization(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior,
    n: int = 32,
    shape: Sequence[int] | None = None,
    *,
    score: str | None = None,
    draws: int = 64,
    start: Tensor | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> Linearization:
    """Compare the tangent rule with Monte Carlo on a handful of samples with shared noise and draws.

    The comparison uses the score `score`. If the rankings differ, larger prior precisions are tried on a few
    samples until the rankings agree.

    >>> check = flare.check_linearization(denoiser, steps, posterior, n=4, shape=(10,), draws=4)
    >>> check.verdict.startswith("First order is")
    True

    Args:
        denoiser: The network.
        steps: The sampler's table.
        posterior: The posterior, at the scale to check.
        n: The number of samples; at least 3.
        shape: The shape of one sample.
        score: The score to compare; by default the same as in `flare.sample`: `expected_residual` for a
            calibrated posterior, otherwise `trace`.
        draws: The number of models to rerun. The tangent rule uses the same draws as directions.
        start: x_T, instead of noise from the seed.
        cond: Keyword arguments of the network.
        seed: Random seed for the noise and the draws.
        progress: Wraps the frames of both runs.
    """
    if start is not None:
        n, shape = len(start), start.shape[1:]
    if shape is None:
        raise ValueError("give the shape of a sample, for instance shape=(80,), or start=x_T.")
    require_denoiser(denoiser)
    posterior.check(denoiser, steps.schedule)
    return compare_rules(
        Model(denoiser, steps.schedule), steps, posterior, require_positive_int("n", n), tuple(shape),
        score=score, draws=draws, start=start, cond=check_conditions(cond, n), seed=seed, progress=progress,
    )  # fmt: skip


@torch.no_grad()
def compare_rules(
    model: Model,
    steps: Steps,
    posterior: Posterior,
    n: int,
    shape: tuple[int, ...],
    *,
    score: str | None = None,
    draws: int = 64,
    start: Tensor | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> Linearization:
    """The comparison of `check_linearization`."""
    if n < 3:
        raise ValueError("a rank correlation needs at least 3 samples; give n=32.")
    score = score or default_score(posterior)
    if not SCORES.find(score).needs_directions:
        raise ValueError(
            f"{score} does not depend on a rule, so there is nothing to compare; give a score of a "
            "trajectory, such as score='trace'."
        )

    def run(given: Posterior, count: int, drawn: int, watched: Progress | bool | None = None) -> Tensor:
        """The scores of the first samples by both rules, without the samples that either of them lost."""
        few = slice(count)
        both = []
        for rule in ("tangent", "monte_carlo"):
            plan = make_plan(
                model, steps, given, count, shape, rule=rule, directions=drawn, score=score,
                start=None if start is None else start[few], cond=take_rows(cond, few), seed=seed,
            )  # fmt: skip
            both.append(Trajectories(plan).finish(watched).score.double())
        pair = torch.stack(both)
        return pair[:, pair.isfinite().all(0)]

    def find_enough() -> float | None:
        """Find a larger prior precision at which the rankings of a few samples agree."""
        for factor in FACTORS:
            colder = posterior.refit(factor * posterior.prior_precision)
            if _agreement(*run(colder, min(n, FEW), min(draws, FEW)))[1] >= TRUSTED:
                return colder.prior_precision
        return None

    tangent, definition = run(posterior, n, draws, progress)
    ratio, correlation = _agreement(tangent, definition)
    return Linearization(
        ratio, correlation, tangent, definition, draws, score,
        prior_precision=posterior.prior_precision,
        enough=None if correlation >= TRUSTED else find_enough(),
    )  # fmt: skip


def _agreement(tangent: Tensor, definition: Tensor) -> tuple[float, float]:
    """The median ratio and Spearman's rank correlation; NaN if one of them is constant."""
    uncertain = definition > 0
    if not uncertain.any():
        raise ValueError("all variances are zero: every sample is clipped, or the posterior is a point.")
    return float((tangent / definition)[uncertain].median()), spearman(tangent, definition)


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two vectors, NaN if one is constant."""
    if len(a.unique()) < 2 or len(b.unique()) < 2:
        return math.nan
    return float(spearmanr(a.cpu().numpy(), b.cpu().numpy()).statistic)
