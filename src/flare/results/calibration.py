"""`calibrate`: a threshold on a score that bounds the share of bad samples, from a few labels.

Learn then test: each candidate threshold t comes with the hypothesis that more than a share `risk` of the
samples below t are bad. Candidates are tested from the strictest to the loosest until one is not rejected.
The last rejected one is the answer.

Each test is an exact binomial test. The candidates are order statistics of the labeled samples' scores: given
the (m + 1)-th lowest score t, the samples below it are independent draws from all samples below t. So the
number of bad ones among them is binomial, and its probability of success is the risk of the threshold.

All tests share the level 1 − confidence, without a correction for their number. Let u be the score above
which thresholds are too loose. Only the first candidate above u matters: if it is not rejected, no looser one
is reached. Below it lie the samples up to u, of which a share `risk` is bad, and those between u and the
candidate, of which a larger share is. So it is rejected with a probability of at most 1 − confidence. This
assumes that thresholds above u are all too loose, as with any score that ranks bad samples higher on the
whole. If instead the risk rises above `risk` c times as the threshold grows, the same argument bounds the
probability of an error by c·(1 − confidence).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..core.warn import warn
from .filtering import keep_below, suggest_fraction

_TOLERATED = 2  # bad samples that the strictest candidate may have if there are many labels


@dataclass(frozen=True, repr=False)
class Calibration:
    """A threshold on a score with a guarantee, from `calibrate`.

    Attributes:
        threshold: the largest score to keep; −inf if no threshold has the guarantee, inf if all have it.
        risk: the largest accepted share of bad samples among the kept.
        confidence: the probability, over the labeled samples, that the guarantee holds.
        n_labeled: how many labeled samples there were.
        n_kept: how many of them are kept.
        n_bad: how many of the kept are bad.
    """

    threshold: float
    risk: float
    confidence: float
    n_labeled: int
    n_kept: int
    n_bad: int

    @property
    def kept(self) -> float:
        """Share of the labeled samples that are kept."""
        return self.n_kept / self.n_labeled

    @property
    def bound(self) -> float:
        """Clopper–Pearson upper confidence bound on the share of bad samples among the kept, at most `risk`.

        It is for this threshold alone; what allows for the choice of the threshold is the guarantee, `risk`.
        NaN if nothing is kept.
        """
        return _upper_bound(self.n_bad, self.n_kept, 1 - self.confidence) if self.n_kept else math.nan

    @property
    def guaranteed(self) -> bool:
        """Whether a threshold with the guarantee was found."""
        return self.threshold > -math.inf

    def keep(self, scores: Tensor) -> Tensor:
        """Mask of the samples to keep, (n,) bool; NaN scores are never kept."""
        return keep_below(torch.as_tensor(scores).double(), self.threshold)

    def __repr__(self) -> str:
        goal = f"at most {100 * self.risk:.3g}% bad among the kept, with confidence {self.confidence:g}"
        if not self.guaranteed:
            return f"Calibration: keeps nothing; no threshold has {goal}"
        return f"Calibration: score ≤ {self.threshold:.4g} keeps {self.kept:.1%}; {goal}"


def calibrate(scores: Tensor, labels: Tensor, risk: float = 0.05, confidence: float = 0.9) -> Calibration:
    """Choose a threshold on a score, such that at most a share `risk` of the kept samples is bad.

    Over random draws of the labeled samples, this holds with a probability of at least `confidence`, for any
    number of labels, any law of the scores, and any score that ranks bad samples higher on the whole (the
    module says what holds for others). It is a statement about samples like the labeled ones: draw these at
    random from the samples of the model, before any filter.

    >>> labels = torch.arange(200) >= 150
    >>> flare.calibrate(torch.arange(200.0), labels)
    Calibration: score ≤ 153 keeps 76.5%; at most 5% bad among the kept, with confidence 0.9

    Args:
        scores: (n,); higher means less trustworthy. Samples with a NaN score are left out.
        labels: which samples are bad, (n,), bool or 0 and 1.
        risk: the largest accepted share of bad samples among the kept, in (0, 1).
        confidence: in (0, 1).
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value}{suggest_fraction(value)}")
    scores, labels = _check_labels(scores, labels)
    n, level = len(scores), 1 - confidence
    nothing = Calibration(-math.inf, risk, confidence, n, 0, 0)
    if (needed := _count_needed(0, risk, level)) > n:
        warn(
            f"{n} labels are too few for risk={risk:g} with confidence={confidence:g}: even without a bad "
            f"sample, {needed} are needed. Nothing is kept.",
            UserWarning,
        )
        return nothing
    scores, order = scores.sort()
    bad = torch.cat([torch.zeros(1, dtype=torch.long), labels[order].cumsum(0)]).tolist()
    first = max(needed, min(n // 4, _count_needed(_TOLERATED, risk, level)))
    below = torch.searchsorted(scores, scores[first:]).unique().tolist()  # samples below each candidate
    chosen = 0
    for count in [*below, n]:
        if count < _count_needed(bad[count], risk, level):
            break
        chosen = count
    if not chosen:
        warn(
            f"no threshold has a risk of at most {risk:g} with confidence={confidence:g}: of the {count} "
            f"samples with the lowest scores, {bad[count]} are bad. Nothing is kept. "
            "Accept a larger risk, give more labels, or use a better score.",
            UserWarning,
        )
        return nothing
    # scores below the next one are kept: those up to the largest smaller number
    threshold = float(scores[chosen].nextafter(scores.new_tensor(-math.inf))) if chosen < n else math.inf
    return Calibration(threshold, risk, confidence, n, chosen, bad[chosen])


def _check_labels(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and bool labels of the samples that have a score; warn if the labels are all alike."""
    scores, labels = torch.as_tensor(scores).detach().cpu(), torch.as_tensor(labels).detach().cpu()
    scores = scores if scores.dtype == torch.float32 else scores.double()
    if scores.ndim != 1 or scores.shape != labels.shape or not len(scores):
        raise ValueError(
            "scores and labels must have one shape (n,) with n of at least 1, got "
            f"{tuple(scores.shape)} and {tuple(labels.shape)}."
        )
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError("labels must be bool, or 0 for good and 1 for bad samples.")
    if scores.isinf().any():
        raise ValueError(f"scores must be finite; {int(scores.isinf().sum())} of {len(scores)} are infinite.")
    labels, found = labels.bool(), ~scores.isnan()
    if not found.any():
        raise ValueError(f"all {len(scores)} scores are NaN: there is nothing to calibrate.")
    if not found.all():
        warn(f"{int((~found).sum())} of {len(scores)} scores are NaN and are left out.", UserWarning)
    scores, labels = scores[found], labels[found]
    if labels.all():
        warn(f"all {len(labels)} labels are bad: are they inverted? True or 1 means bad.", UserWarning)
    elif not labels.any():
        warn(
            f"none of the {len(labels)} labels is bad, so they do not show how bad samples score. "
            "Label some bad samples, if there are any.",
            UserWarning,
        )
    return scores, labels


def _binomial_cdf(count: int, n: int, p: float) -> float:
    """P(X ≤ count) of a binomial X with n trials and probability p in (0, 1)."""
    if count >= n:
        return 1.0
    i = torch.arange(count + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    return float((ways + i * math.log(p) + (n - i) * math.log1p(-p)).logsumexp(0).exp())


@lru_cache(maxsize=10_000)
def _count_needed(bad: int, risk: float, level: float) -> int:
    """The smallest number of samples, `bad` of them bad, for which a risk above `risk` is rejected."""
    low, high = bad, bad + 1
    while _binomial_cdf(bad, high, risk) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _binomial_cdf(bad, middle, risk) > level else (low, middle)
    return high


def _upper_bound(bad: int, n: int, level: float) -> float:
    """The Clopper–Pearson upper bound of a probability: the p with P(X ≤ bad) = level."""
    low, high = bad / n, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _binomial_cdf(bad, n, middle) > level else (low, middle)
    return high
