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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from scipy.stats import nbinom
from torch import Tensor

from ..core.progress import warn
from .filters import require_share
from .result import Result

_TOLERATED = 2  # bad samples that the strictest candidate may have if there are many labels


@dataclass(frozen=True, repr=False)
class Calibration:
    """A threshold on a score with a guarantee, from `calibrate`.

    Attributes:
        threshold: The largest score to keep; −inf if no threshold has the guarantee, inf if all have it.
        risk: The largest accepted share of bad samples among the kept.
        confidence: The probability, over the labeled samples, that the guarantee holds.
        kept: Share of the labeled samples that are kept.
    """

    threshold: float
    risk: float
    confidence: float
    kept: float

    @property
    def guaranteed(self) -> bool:
        """Whether a threshold with the guarantee was found."""
        return self.threshold > -math.inf

    def keep(self, result: Result | Tensor) -> Tensor:
        """Mask of the samples to keep, (n,) bool; lost samples are never kept.

        Args:
            result: A result, or scores (n,), of the same kind as those of `calibrate`.
        """
        return _find_ranking(result).double() <= self.threshold

    def __repr__(self) -> str:
        goal = f"at most {100 * self.risk:.3g}% bad among the kept, with confidence {self.confidence:g}"
        if not self.guaranteed:
            return f"Calibration: keeps nothing; no threshold has {goal}"
        return f"Calibration: score ≤ {self.threshold:.4g} keeps {self.kept:.1%}; {goal}"


def calibrate(
    result: Result | Tensor,
    labels: ArrayLike | Tensor | Mapping[int, bool],
    risk: float = 0.05,
    confidence: float = 0.9,
) -> Calibration:
    """Choose a threshold such that at most a share `risk` of the kept samples is bad.

    Over random draws of the labeled samples, this holds with a probability of at least `confidence`, for any
    number of labels, any distribution of the scores, and any score that ranks bad samples higher on the whole
    (the module says what holds for others). It is a statement about samples like the labeled ones: draw these
    at random from the samples of the model, before any filter.

    >>> labels = torch.arange(200) >= 150
    >>> flare.calibrate(torch.arange(200.0), labels)
    Calibration: score ≤ 153 keeps 76.5%; at most 5% bad among the kept, with confidence 0.9

    Args:
        result: A result, ranked by the z of its verdict, or by its score without one; or scores (n,), higher
            for less trustworthy samples. Lost samples (NaN) are left out.
        labels: Which samples are bad: (n,) of bool or 0 and 1, with NaN for samples without a label; or a
            mapping from the indices of the labeled samples to whether they are bad.
        risk: The largest accepted share of bad samples among the kept, in (0, 1).
        confidence: The probability of the guarantee, in (0, 1).
    """
    require_share("risk", risk, below_one=True)
    require_share("confidence", confidence, below_one=True)
    scores, bad = _find_labeled(_find_ranking(result).cpu(), labels)
    n = len(scores)
    nothing = Calibration(-math.inf, risk, confidence, 0.0)
    needed, tolerant = (_count_needed(count, risk, confidence) for count in (0, _TOLERATED))
    if needed > n:
        warn(
            f"{n} labels are too few for risk={risk:g} with confidence={confidence:g}: even without a bad "
            f"sample, {needed} are needed. Nothing is kept.",
            UserWarning,
        )
        return nothing
    scores, order = scores.sort()
    total = torch.cat([torch.zeros(1, dtype=torch.long), bad[order].cumsum(0)])
    # samples below each candidate, from the strictest to the loosest
    below = torch.searchsorted(scores, scores[max(needed, min(n // 4, tolerant)) :]).unique()
    below = torch.cat([below, torch.tensor([n])])
    rejected = below >= torch.from_numpy(_count_needed(total[below].numpy(), risk, confidence))
    steps = int(rejected.long().cumprod(0).sum())  # until the first that is not rejected
    if not steps:
        count = below[0]
        warn(
            f"no threshold has a risk of at most {risk:g} with confidence={confidence:g}: of the {count} "
            f"samples with the lowest scores, {total[count]} are bad. Nothing is kept. "
            "Accept a larger risk, give more labels, or use a better score.",
            UserWarning,
        )
        return nothing
    chosen = int(below[steps - 1])
    # scores below the next one are kept: those up to the largest smaller number
    threshold = float(scores[chosen].nextafter(scores.new_tensor(-math.inf))) if chosen < n else math.inf
    return Calibration(threshold, risk, confidence, chosen / n)


def _count_needed(bad: Any, risk: float, confidence: float) -> Any:
    """The smallest number of samples, `bad` of them bad, for which a risk above `risk` is rejected.

    If a share `risk` of all samples is bad, this many have more than `bad` bad ones with a probability of at
    least `confidence`: it is a quantile of the number of draws until `bad` + 1 of them are bad.
    """
    return bad + 1 + nbinom.ppf(confidence, bad + 1, risk).astype(int)


def _find_ranking(result: Result | Tensor) -> Tensor:
    """The scores (n,) of samples, float32 or float64 and finite, or NaN for lost samples."""
    scores = torch.as_tensor(result.ranking if isinstance(result, Result) else result).detach()
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"scores must have shape (n,) with n of at least 1, got {tuple(scores.shape)}.")
    if infinite := int(scores.isinf().sum()):
        raise ValueError(f"scores must be finite; {infinite} of {len(scores)} are infinite.")
    return scores if scores.dtype == torch.float32 else scores.double()


def _find_labeled(scores: Tensor, labels: Any) -> tuple[Tensor, Tensor]:
    """Scores and labels of the samples that have both; warn if the labels are all alike."""
    n = len(scores)
    if isinstance(labels, Mapping):
        index = torch.tensor([*labels], dtype=torch.long)
        values = torch.tensor([float(bad) for bad in labels.values()])
        if ((index < 0) | (index >= n)).any():
            raise ValueError(f"labels must be of the samples 0 to {n - 1}, got {index.tolist()}.")
        labels = torch.full((n,), torch.nan).index_put((index,), values)
    labels = torch.as_tensor(labels).detach().cpu().double()
    if labels.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one per sample, got {tuple(labels.shape)}.")
    labeled = ~labels.isnan()
    if not ((labels == 0) | (labels == 1) | ~labeled).all():
        raise ValueError("labels must be bool, or 0 for good and 1 for bad samples.")
    usable = labeled & ~scores.isnan()
    if not usable.any():
        raise ValueError(f"none of the {n} samples has a label and a score: there is nothing to calibrate.")
    if lost := int((labeled & ~usable).sum()):
        warn(f"{lost} of {int(labeled.sum())} scores are NaN and are left out.", UserWarning)
    scores, bad = scores[usable], labels[usable].bool()
    if bad.all():
        warn(f"all {len(bad)} labels are bad: are they inverted? True or 1 means bad.", UserWarning)
    elif not bad.any():
        warn(
            f"none of the {len(bad)} labels is bad, so they do not show how bad samples score. "
            "Label some bad samples, if there are any.",
            UserWarning,
        )
    return scores, bad
