"""Which samples to label, so that few labels give a threshold with a guarantee (see `calibration`).

The candidate thresholds keep the best half and the best three quarters of the samples with a score. Every
sample has a permanent random number, which depends on its index alone. The samples to label are, for each
candidate, the k samples that it keeps with the smallest random numbers. So they are a simple random sample of
what the candidate keeps. Most of them serve both candidates: about 60 labels do the work of twice 45.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import nbinom
from torch import Tensor

from .filters import require_share

SHARES = (0.5, 0.75)  # what the candidates keep; experiments/labels.py compares others
_LEAST = 1e-6  # risk
_SEED = 0  # of the random numbers: another one would propose other samples than those labeled already


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
