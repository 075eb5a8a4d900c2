"""`calibrate`: a threshold on a score that bounds the share of bad samples, from a few labels.

Each candidate threshold comes with the hypothesis that more than a share `risk` of the samples that it keeps
are bad. Candidates are tested from the strictest to the loosest, each at the level 1 − confidence, until one
is not rejected. The last rejected one is the answer.

**Labels of the proposed samples.** The candidates keep the best half and the best three quarters of the
samples with a score. Every sample has a permanent random number, which depends only on its index. Each
candidate is tested with the k samples that it keeps with the smallest random numbers: a simple random sample
of what it keeps. Most of these serve both candidates: about 60 labels do the work of twice 45.
So the number of bad ones is hypergeometric. An exact binomial test is conservative for it if the confidence
is at least 0.7, and exact for new samples of the model. The candidates do not depend on the labels, so the
first candidate whose risk is too large is a fixed one. An error requires that it is rejected, because no
looser one is reached otherwise: the probability is at most 1 − confidence, whatever the scores are.

All candidates use the same k. It is the largest number of labels for which the test tolerates b bad samples,
for some b, and for which the first k samples of every candidate are labeled. So the labels of a proposal for
a smaller risk are used, and labels of other samples are ignored. The longest labeled sequence of each
candidate cannot be used instead: it ends before a sample that only looser candidates keep, so it would
contain too many of the most plausible samples.

If the strictest candidate is not rejected, nothing is kept, and the answer is the upper Clopper–Pearson bound
of its risk. The same confidence covers both answers. The bound is at most `risk` exactly if the candidate is
rejected. If the risk of the strictest candidate is too large, then its rejection and a bound that is too
small both mean that the bound lies below the true risk, which has a probability of at most 1 − confidence.
If its risk is not too large, a bound above `risk` is never wrong, and only a rejection of a looser candidate
can be.

**Labels of a random choice of all samples.** The candidates are order statistics of the labeled samples'
scores: given the (m + 1)-th lowest score t, the samples below it are independent draws from all samples below
t. So the number of bad ones among them is binomial. Let u be the score above which thresholds are too loose.
Only the first candidate above u matters: if it is not rejected, no looser one is reached. Below it lie the
samples up to u, of which a share `risk` is bad, and those between u and the candidate, of which a larger
share is. So it is rejected with a probability of at most 1 − confidence. This assumes that thresholds above u
are all too loose, as with any score that ranks bad samples higher on the whole. If instead the risk rises
above `risk` c times as the threshold grows, the same argument bounds the probability of an error by
c·(1 − confidence).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import beta, nbinom
from torch import Tensor

from ..core.progress import warn
from ..core.validation import one_of
from .filters import Mask, require_share

if TYPE_CHECKING:
    from .result import Result

LabelDesign = Literal["proposed", "random"]
# thresholds from the strictest to the loosest, how many labeled samples test each, how many of these are bad
_Candidates = tuple[list[float], list[int], list[int]]
SHARES = (0.5, 0.75)  # what the candidates keep; experiments/labels.py compares others
_LEAST = 1e-6  # risk
_SEED = 0  # of the random numbers: another one would propose other samples than those labeled already
_TOLERATED = 2  # bad samples that the strictest candidate may have if there are many random labels


@dataclass(frozen=True, repr=False)
class Calibration:
    """A threshold on a score with a guarantee, from `calibrate`.

    Attributes:
        threshold: The largest score to keep; −inf if no threshold has the guarantee, inf if all have it.
        risk: The largest accepted share of bad samples among the kept.
        confidence: The probability, over the labeled samples, that the guarantee holds.
        kept: Number of samples of the result that are kept.
        total: Number of samples of the result.
        labels: Number of labeled samples.
        counted: Number of labels that test the threshold, or the strictest one if nothing is kept.
        bad: Number of bad samples among the counted ones.
        bound: The largest share of bad samples among the kept, or among `best` if nothing is kept.
        best: The share of the samples with a score that the strictest threshold keeps.
    """

    threshold: float
    risk: float
    confidence: float
    kept: int
    total: int
    labels: int
    counted: int
    bad: int
    bound: float
    best: float

    @property
    def guaranteed(self) -> bool:
        """Whether a threshold with the guarantee was found."""
        return self.threshold > -math.inf

    def keep(self, result: Result | Tensor) -> Tensor:
        """Mask of the samples to keep, (n,) bool; lost samples are never kept.

        The mask also selects rows of the scored table: `df[rule.keep(result)]`.

        Args:
            result: A result, or scores (n,), of the same kind as in `calibrate`.
        """
        return (_find_ranking(result).double() <= self.threshold).as_subclass(Mask)

    def __str__(self) -> str:
        basis = f"({self.labels:,} labels, {self.bad:,} bad among the {self.counted:,} that count)"
        goal, sure = f"at most {100 * self.risk:.3g}%", f"with confidence {self.confidence:g}"
        if self.guaranteed:
            share = f"{self.kept:,} of {self.total:,} samples ({100 * self.kept / self.total:.3g}%)"
            return f"keeps {share}: {goal} of them are bad, {sure} {basis}"
        best = {50: "the best half has", 100: "the whole set has"}.get(round(100 * self.best))
        best = best or f"the best {self.best:.0%} have"
        bound = f"; {best} at most {math.ceil(1000 * self.bound) / 10:g}% bad" if self.bound < 1 else ""
        return f"keeps nothing: no threshold reaches {goal} bad {sure}{bound} {basis}"

    def __repr__(self) -> str:
        return f"Calibration: {self}"


def calibrate(
    result: Result | Tensor,
    labels: ArrayLike | Tensor | Mapping[int, bool],
    risk: float = 0.05,
    confidence: float = 0.9,
    design: LabelDesign = "proposed",
) -> Calibration:
    """Choose a threshold such that at most a share `risk` of the kept samples is bad.

    Label the samples of `result.propose_labels(risk, confidence)`, about 60 by default. Over random draws of
    them, the guarantee holds with a probability of at least `confidence`, for any score (for a proof, see the
    docstring of the module). If no threshold has the guarantee, the answer bounds the share of bad samples
    among the best. Choose risk and confidence before you look at the labels, because each further attempt
    adds a probability of error.

    >>> ranking = torch.arange(1000.0)
    >>> proposed = flare.Result(torch.empty(1000, 0), scores={"score": ranking}).propose_labels()
    >>> flare.calibrate(ranking, {int(i): bool(i >= 800) for i in proposed})
    Calibration: keeps 750 of 1,000 samples (75%): at most 5% of them are bad, with confidence 0.9
    (58 labels, 0 bad among the 45 that count)

    Args:
        result: A result, ranked by the z of its verdict, or by its score without one; or scores (n,), larger
            for more doubtful samples. Lost samples (NaN) are left out.
        labels: Which samples are bad: (n,) of bool or 0 and 1, with NaN for samples without a label; or a
            mapping from the indices of the labeled samples to whether they are bad.
        risk: The largest accepted share of bad samples among the kept, in (0, 1).
        confidence: The probability of the guarantee, in (0, 1).
        design: Which samples are labeled: "proposed" for the samples of `result.propose_labels` (other labels
            are ignored), or "random" for a random selection of all samples, made before any filter. If all
            samples with a score are labeled, both are the same.
    """
    require_goal(risk, confidence)
    one_of("design", design, get_args(LabelDesign))
    ranking = _find_ranking(result).cpu()
    bad = _read_labels(ranking, labels)
    found, labeled = int((~ranking.isnan()).sum()), int((~bad.isnan()).sum())
    choose = _choose_random if design == "random" or labeled == found else _choose_proposed
    thresholds, counted, wrong = choose(ranking, bad, risk, confidence)
    rejected = np.array(counted) >= count_needed(np.array(wrong), risk, confidence)
    steps = int(rejected.cumprod().sum())  # until the first that is not rejected
    n, b = (values[max(steps - 1, 0)] for values in (counted, wrong))
    threshold = thresholds[steps - 1] if steps else -math.inf
    bound = risk if steps else float(beta.ppf(confidence, b + 1, n - b)) if b < n else 1.0
    kept, best = (int((ranking.double() <= limit).sum()) for limit in (threshold, thresholds[0]))
    rule = Calibration(threshold, risk, confidence, kept, len(ranking), labeled, n, b, bound, best / found)
    if not steps:
        needed = int(count_needed(0, risk, confidence))
        few = f"{n} labels count, and even without a bad one {needed} are needed"
        why = few if n < needed else "accept a larger risk, or use a better score or model"
        warn(f"no threshold has the guarantee, so nothing is kept: {why}.", UserWarning)
    return rule


def _choose_proposed(ranking: Tensor, bad: Tensor, risk: float, confidence: float) -> _Candidates:
    """The candidates of `labels`, each with the same number of its first samples."""
    thresholds, kept = order_candidates(ranking)
    least = int(count_needed(0, risk, confidence))
    lengths = [int((~bad[own].isnan()).long().cumprod(0).sum()) for own in kept]
    if any(length < min(least, len(own)) for length, own in zip(lengths, kept, strict=True)):
        order = design_labels(ranking, risk, confidence).order
        missing = order[bad[order].isnan()].tolist()
        first = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        raise ValueError(
            f"labels are missing for {len(missing)} of the {len(order)} proposed samples: {first}. Add them, "
            "or use design='random' if you labeled a random choice of all samples."
        )
    steps = count_needed(np.arange(min(lengths) + 1), risk, confidence)
    count = max(least, int(steps[steps <= min(lengths)].max(initial=0)))
    tested = [bad[own[:count]] for own in kept]
    return thresholds, [len(own) for own in tested], [int(own.sum()) for own in tested]


def _choose_random(ranking: Tensor, bad: Tensor, risk: float, confidence: float) -> _Candidates:
    """The order statistics of the labeled samples' scores, each with the samples below it."""
    labeled = ~bad.isnan()
    scores, order = ranking[labeled].sort()
    n = len(scores)
    needed, tolerant = (int(count_needed(count, risk, confidence)) for count in (0, _TOLERATED))
    total = torch.cat([torch.zeros(1), bad[labeled][order].cumsum(0)]).long()
    below = torch.searchsorted(scores, scores[max(needed, min(n // 4, tolerant)) :]).unique()
    below = below[below >= needed]  # of ties, fewer may lie below
    # scores below the next one are kept: those up to the largest smaller number
    limits = scores[below].nextafter(scores.new_tensor(-math.inf))
    below = torch.cat([below, torch.tensor([n])])
    return [*limits.tolist(), math.inf], below.tolist(), total[below].tolist()


def _find_ranking(result: Result | Tensor) -> Tensor:
    return check_ranking(getattr(result, "ranking", result))


def _read_labels(scores: Tensor, labels: Any) -> Tensor:
    """Which samples are bad, (n,) of 0 and 1, and NaN without a label or score; warn if all are bad."""
    n = len(scores)
    if isinstance(labels, Mapping):
        index = torch.tensor([*labels], dtype=torch.long)
        if wrong := next((each for each in labels.values() if isinstance(each, str)), None):
            raise ValueError(f"labels must be True for bad samples and False for good ones, got {wrong!r}.")
        values = torch.tensor([float(bad) for bad in labels.values()])
        if ((index < 0) | (index >= n)).any():
            raise ValueError(f"labels must have sample indices from 0 to {n - 1}, got {index.tolist()}.")
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
    if labels[usable].all():
        warn(f"all {int(usable.sum())} labels are bad: are they inverted? True or 1 means bad.", UserWarning)
    return labels.masked_fill(~usable, torch.nan)


class Design(NamedTuple):
    """Which samples to label, and what their labels decide.

    Attributes:
        order: Indices of the samples to label, in labeling order.
        shares: Share of the samples that each candidate keeps, the strictest first.
        thresholds: Largest score that each candidate keeps.
        members: Indices of the samples that test each candidate, in labeling order: `needed[0]`, or all that
            the candidate keeps if it keeps fewer.
        needed: Number of labels for which a candidate is accepted if b of them are bad, for b = 0, …, 9.
    """

    order: Tensor
    shares: tuple[float, ...]
    thresholds: list[float]
    members: list[Tensor]
    needed: list[int]


def design_labels(ranking: Tensor, risk: float, confidence: float) -> Design:
    """Choose the samples to label.

    >>> design = design_labels(torch.arange(1000.0), 0.05, 0.9)
    >>> len(design.order), design.thresholds, design.needed[:3]
    (58, [499.0, 749.0], [45, 77, 105])

    Args:
        ranking: Finite numbers (n,), the most plausible samples lowest, and NaN for lost samples.
        risk: The largest accepted share of bad samples among the kept, in (0, 1).
        confidence: The probability of the guarantee, in (0, 1).
    """
    require_goal(risk, confidence)
    thresholds, kept = order_candidates(ranking)
    needed = count_needed(np.arange(10), risk, confidence).tolist()
    members = [own[: needed[0]] for own in kept]
    order = draw_order(len(ranking))
    return Design(order[torch.isin(order, torch.cat(members))], SHARES, thresholds, members, needed)


def draw_order(n: int) -> Tensor:
    """The indices of n samples in the order of their permanent random numbers.

    Bit generators of numpy give the same numbers in all versions, and n of them are the first of more.
    """
    return torch.from_numpy(np.random.PCG64(_SEED).random_raw(n).argsort(kind="stable"))


def order_candidates(ranking: Tensor) -> tuple[list[float], list[Tensor]]:
    """The threshold of each candidate, and the indices of all samples that it keeps, in labeling order."""
    ranking = check_ranking(ranking).cpu()
    ranks = ranking[~ranking.isnan()].sort().values
    if not len(ranks):
        raise ValueError(f"all {len(ranking)} scores are NaN: there is nothing to label.")
    thresholds = [float(ranks[math.ceil(share * len(ranks)) - 1]) for share in SHARES]
    order = draw_order(len(ranking))
    return thresholds, [order[ranking[order].double() <= threshold] for threshold in thresholds]


def count_needed(bad: Any, risk: float, confidence: float) -> Any:
    """The smallest number of samples, `bad` of them bad, for which a risk above `risk` is rejected.

    If a share `risk` of all samples is bad, this many have more than `bad` bad ones with a probability of at
    least `confidence`: it is a quantile of the number of draws until `bad` + 1 of them are bad.
    """
    return bad + 1 + nbinom.ppf(confidence, bad + 1, risk).astype(int)


def require_goal(risk: float, confidence: float) -> None:
    """Raise unless risk and confidence lie in (0, 1), and labels could ever be enough."""
    require_share("risk", risk, below_one=True)
    require_share("confidence", confidence, below_one=True)
    if risk < _LEAST:
        raise ValueError(f"risk must be at least {_LEAST:g}, got {risk:g}: it would need millions of labels.")


def check_ranking(scores: Any) -> Tensor:
    """The scores (n,) of samples, float32 or float64 and finite, or NaN for lost samples."""
    scores = torch.as_tensor(scores).detach()
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"scores must have shape (n,) with n of at least 1, got {tuple(scores.shape)}.")
    if infinite := int(scores.isinf().sum()):
        raise ValueError(f"scores must be finite; {infinite} of {len(scores)} are infinite.")
    return scores if scores.dtype == torch.float32 else scores.double()
