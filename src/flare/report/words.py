"""The verdict in words: what the first screen of the report says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import sqrt

from torch import Tensor

from ..results.result import Result
from ..results.verdict import Verdict
from .rankings import Ranking, is_held_out

REASONS = {
    "influence": "would change the model",
    "neighbors": "far from the training data",
    "error_profile": "hard to denoise",
}
CHANCE = 3.0  # standard errors that chance explains


@dataclass(frozen=True)
class Words:
    """Sentences.

    Attributes:
        headline: how many samples are doubtful.
        suggestion: the suggested threshold, and what it keeps.
        details: what qualifies the headline.
        alert: what is wrong with the model as a whole, if anything is.
    """

    headline: str
    suggestion: str
    details: list[str] = field(default_factory=list)
    alert: str | None = None


def describe(result: Result, ranking: Ranking, alpha: float, keep: float) -> Words:
    """The answer of a page.

    Args:
        result: without lost samples.
        ranking: by the verdict, or by a score if there is no verdict.
        alpha: the suggested p-value.
        keep: the fraction to keep if there are no p-values.
    """
    if ranking.p_value is None or ranking.size is None:
        return _without_real_data(ranking, keep)
    n, doubtful = len(ranking.values), int((ranking.p_value <= alpha).sum())
    held_out = is_held_out(result)
    real = "real data" if held_out else "the training data"
    return Words(
        f"{doubtful:,} of {n:,} samples look less plausible than {_percent(1 - alpha)} of {real}.",
        f"Suggested threshold: p = {alpha:g}. It keeps {n - doubtful:,} of {n:,} samples, and about "
        f"{_percent(1 - alpha)} of {real}.",
        [
            _compare_with_chance(doubtful, n, ranking.size, alpha),
            *_list_reasons(result.verdict, ranking.p_value <= alpha),
            *_count_copies(result.verdict),
            *_qualify(held_out, ranking.size, alpha),
        ],
        _alert(result, doubtful, n, alpha),
    )


def _without_real_data(ranking: Ranking, keep: float) -> Words:
    n = len(ranking.values)
    count = max(1, round(keep * n))
    threshold = float(ranking.values.sort().values[count - 1])
    return Words(
        f"{n:,} samples, ranked by the score “{ranking.name}”: the larger, the less trustworthy.",
        f"Keeping the best {_percent(keep)} means {count:,} samples with {ranking.name} ≤ {threshold:.4g}.",
        [
            "There is no real data to compare with, so this page ranks the samples and cannot say how many "
            "of them are bad. flare.fit scores held-out data too, and gives p-values."
        ],
    )


def _compare_with_chance(doubtful: int, n: int, size: int, alpha: float) -> str:
    """The number of doubtful samples beside the number among real data."""
    expected = alpha * n
    text = f"Of {n:,} real samples, about {expected:,.0f} would"
    # both the samples and the real data that they are compared with are drawn at random
    error = sqrt(alpha * (1 - alpha) * (1 / n + 1 / size))
    if doubtful / n > alpha + CHANCE * error:
        return f"{text}: these are {doubtful / expected:.1f} times as many."
    if doubtful / n < alpha - CHANCE * error:
        return f"{text}: these are fewer than chance explains; the samples may cover too little of the data."
    return f"{text}: as a whole, the samples look like real data."


def _list_reasons(verdict: Verdict | None, doubtful: Tensor) -> list[str]:
    if verdict is None:
        return []
    counts = Counter(reason for reason, bad in zip(verdict.reason, doubtful.tolist(), strict=True) if bad)
    if not counts:
        return []
    listed = ", ".join(f"{REASONS.get(name, name)} ({count:,})" for name, count in counts.most_common())
    return [f"What speaks most against them: {listed}."]


def _count_copies(verdict: Verdict | None) -> list[str]:
    if verdict is None or verdict.copies is None:
        return []
    copies = int(verdict.copies.sum())
    if not copies:
        return ["None is a near copy of training data."]
    number = "1 is a near copy" if copies == 1 else f"{copies:,} are near copies"
    return [f"{number} of training data: nearer to it than any of the real data that was compared."]


def _qualify(held_out: bool, size: int, alpha: float) -> list[str]:
    found = []
    if not held_out:
        found.append(
            "Training data has scores that are too low, so good samples look more doubtful than they are; "
            "hold out some data for exact p-values."
        )
    if 1 / (size + 1) > alpha:
        found.append(
            f"With {size:,} real samples no p-value is below {1 / (size + 1):.2g}: give more of them to "
            "tell doubtful samples."
        )
    return found


def _alert(result: Result, doubtful: int, n: int, alpha: float) -> str | None:
    """What is wrong with the model: what was found when the scorer was fitted, or that most samples are."""
    if problems := result.about.get("problems"):
        return f"Do not trust these p-values yet. {' '.join(map(str, problems))}"
    if doubtful <= n / 2:
        return None
    return (
        f"Most samples look unlike real data: {doubtful:,} of {n:,}, where about {alpha * n:,.0f} are "
        "expected. The model as a whole is off, and no filter repairs that. Check first that it was trained "
        "long enough, that the noise schedule is the one it was trained with, and that the data has the "
        "range it was trained on."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
