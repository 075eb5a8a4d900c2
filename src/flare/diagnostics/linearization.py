"""Is first order enough? The tangent rule against the definition, at the posterior's own scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.conditions import Cond, take_rows
from ..core.progress import Progress
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..sampling.existing import default_score
from ..sampling.options import SampleOptions
from ..sampling.sample import sample
from ..scores import SCORES

TRUSTED = 0.9  # the least rank correlation of a ranking that can be trusted
FACTORS = tuple(10.0**k for k in range(1, 7))  # of the prior precision, tried in turn
FEW = 16  # samples and draws of these trials


@dataclass(frozen=True)
class Linearization:
    """Tangent against Monte Carlo on the same samples and the same draws of the posterior.

    Attributes:
        ratio: the median over the samples of tangent score / Monte-Carlo score.
        correlation: Spearman's rank correlation of the two.
        tangent: the scores by the tangent rule, (n,); without the samples that either rule lost.
        monte_carlo: the scores by Monte Carlo, (n,).
        draws: how many models were drawn.
        score: the score that was compared.
        trace_ratio: the same ratio of the traces, whatever the score.
        trace_correlation: the same correlation of the traces.
        prior_precision: the posterior's own δ.
        enough: a larger δ at which the rankings agree, the present one times a power of ten; None if it is
            not needed or not found.
    """

    ratio: float
    correlation: float
    tangent: Tensor
    monte_carlo: Tensor
    draws: int
    score: str = "trace"
    trace_ratio: float = math.nan
    trace_correlation: float = math.nan
    prior_precision: float = math.nan
    enough: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the ranking by the score agrees with that of rerun models."""
        return self.correlation >= TRUSTED

    @property
    def finding(self) -> str:
        """What the figures mean, in plain words."""
        if math.isnan(self.correlation):
            return f"First order is not enough at this scale: it gives every sample the same {self.score}."
        if not self.trusted:
            return (
                f"First order is not enough at this scale: the ranking by {self.score} differs from that of "
                f"rerun models (correlation {self.correlation:.2f})."
            )
        if 0.8 <= self.ratio <= 1.25:
            return f"First order is enough: {self.score} and its ranking agree with rerun models."
        return (
            f"The ranking can be trusted, the size cannot: first order gives {self.ratio:.2g} times the "
            f"{self.score} of rerun models. Filter by the score; do not read it as a variance."
        )

    def advice(self, prior: str = "prior_precision=", rule: str = "rule='monte_carlo'") -> str:
        """What to change if the ranking cannot be trusted, in the words of an interface; empty if it can.

        Args:
            prior: how the prior precision is set.
            rule: how the definition is asked for.
        """
        if self.trusted:
            return ""
        if self.enough is None:
            return f"No larger prior precision that was tried is enough: use {rule}."
        return (
            f"Fit with {prior}{self.enough:.2g} ({self.enough / self.prior_precision:g} times the present "
            f"{self.prior_precision:.2g}), where the rankings agree, or use {rule}."
        )

    @property
    def verdict(self) -> str:
        """The finding, with what to change."""
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

    What is compared is the score in use. If its rankings differ, larger prior precisions are tried on a few
    samples until they agree.

    >>> check = flare.check_linearization(denoiser, steps, posterior, n=4, shape=(10,), draws=4)
    >>> check.verdict.startswith("First order is")
    True

    Args:
        denoiser: the network.
        steps: the sampler's table.
        posterior: at the scale that is to be judged.
        n: how many samples; at least 3.
        shape: of one sample.
        score: which score to compare; that of `flare.sample` by default: `expected_residual` of a calibrated
            posterior, else `trace`.
        draws: how many models to rerun; the same draws are the tangent's directions.
        start: x_T, instead of noise from the seed.
        cond: keyword arguments of the network.
        seed: of the noise and the draws.
        progress: wraps the frames of both runs.
    """
    count = require_positive_int("n", n if start is None else len(start))
    if count < 3:
        raise ValueError("a rank correlation needs at least 3 samples; give n=32.")
    score = score or default_score(posterior)
    if not SCORES.find(score).needs_directions:
        raise ValueError(
            f"{score} does not depend on a rule, so there is nothing to compare; give a score of a "
            "trajectory, such as score='trace'."
        )
    options: SampleOptions = {"start": start, "cond": cond, "seed": seed}
    comparison = _Comparison(denoiser, steps, shape, score, options)
    both = comparison.run(posterior, count, draws, progress)
    tangent, definition = both.of(score)
    ratio, correlation = _agreement(tangent, definition)
    return Linearization(
        ratio,
        correlation,
        tangent,
        definition,
        draws,
        score,
        *_agreement(*both.of("trace")),
        prior_precision=posterior.prior_precision,
        enough=None if correlation >= TRUSTED else comparison.find_enough(posterior, count, draws),
    )


@dataclass(frozen=True)
class _Comparison:
    """How the two rules are compared, whatever the posterior.

    Attributes:
        denoiser: the network.
        steps: the sampler's table.
        shape: of one sample; None if `start` is given.
        score: which score to compare.
        options: start, conditions and seed of `sample`.
    """

    denoiser: Denoiser
    steps: Steps
    shape: Sequence[int] | None
    score: str
    options: SampleOptions

    def run(
        self, posterior: Posterior, count: int, draws: int, progress: Progress | bool | None = None
    ) -> _Both:
        """Draw the first samples by both rules."""
        options, few = self.options.copy(), slice(count)
        if (start := self.options.get("start")) is not None:
            options["start"] = start[few]
        if (cond := self.options.get("cond")) is not None:
            options["cond"] = take_rows(cond, few)
        options |= {"score": list(dict.fromkeys([self.score, "trace"])), "directions": draws}
        tangent, definition = (
            sample(
                self.denoiser,
                self.steps,
                posterior,
                count if start is None else None,
                self.shape,
                progress=progress,
                **{**options, "rule": rule},  # type: ignore[arg-type]
            ).scores
            for rule in ("tangent", "monte_carlo")
        )
        return _Both(tangent, definition)

    def find_enough(self, posterior: Posterior, count: int, draws: int) -> float | None:
        """Find a larger prior precision at which the rankings of a few samples agree."""
        for factor in FACTORS:
            colder = posterior.refit(factor * posterior.prior_precision)
            trial = self.run(colder, min(count, FEW), min(draws, FEW))
            if _agreement(*trial.of(self.score))[1] >= TRUSTED:
                return colder.prior_precision
        return None


@dataclass(frozen=True)
class _Both:
    """The scores of the same samples by the tangent rule and by Monte Carlo."""

    tangent: Mapping[str, Tensor]
    monte_carlo: Mapping[str, Tensor]

    def of(self, score: str) -> tuple[Tensor, Tensor]:
        """One score by both rules, without the samples that either of them lost."""
        tangent, definition = (scores[score].double() for scores in (self.tangent, self.monte_carlo))
        found = tangent.isfinite() & definition.isfinite()
        return tangent[found], definition[found]


def _agreement(tangent: Tensor, definition: Tensor) -> tuple[float, float]:
    """The median ratio and the rank correlation."""
    uncertain = definition > 0
    if not uncertain.any():
        raise ValueError("no sample moves at all: every one of them is clipped, or the posterior is a point.")
    return float((tangent / definition)[uncertain].median()), spearman(tangent, definition)


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two vectors, NaN if one is constant; ties share their mean rank."""
    return float(torch.corrcoef(torch.stack([_ranks(a), _ranks(b)]))[0, 1])


def _ranks(v: Tensor) -> Tensor:
    _, place, count = v.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[place]
