"""The verdict in words: what the first screen of the report says."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from ..results.drawing import Ranking
from ..results.filters import keep_best
from ..results.result import Result
from ..results.verdict import Verdict

REASONS = {
    "activations": "the network has seen nothing like it",
    "epistemic_distance": "the network is unsure how it differs from what it knows",
    "influence": "it would change the network",
    "neighbors": "far from the training data",
    "error_profile": "hard to denoise",
}
LOW = 0.7  # rank correlation below which a score hardly repeats
CHANCE = 3.0  # standard errors that chance explains


def describe(result: Result, ranking: Ranking, alpha: float, keep: float) -> dict[str, Any]:
    """Sentences: `headline`, `filter`, `details` (a list), and `alert`, which may be None.

    Args:
        result: Samples without lost ones.
        ranking: Ranking by the verdict, or by a score if there is no verdict.
        alpha: Samples with a p-value of at most `alpha` are doubtful.
        keep: Share of the samples that the filter keeps.
    """
    n = len(result)
    kept = keep_best(ranking.values, keep, result.regions)
    several = result.regions is not None and len(result.regions.unique()) > 1
    of = " of every region" if several else ""
    action = f"The filter keeps {int(kept.sum()):,} of {n:,} samples, the most plausible {_percent(keep)}{of}"
    if ranking.p_value is None or ranking.size is None:
        return {
            "headline": f"{n:,} samples, ranked by the score “{ranking.name}”: larger means more doubtful.",
            "filter": f"{action}.",
            "details": [
                "There is no real data to compare with, so this page ranks the samples and cannot say how "
                "many of them are bad. flare.fit also scores held-out data, which gives p-values."
            ],
            "alert": None,
        }
    doubtful = ranking.p_value <= alpha
    count, held_out = int(doubtful.sum()), result.verdict is None or result.verdict.held_out
    wrong = int((kept & doubtful).sum())
    inside = {0: "none of them is", 1: "1 of them is"}.get(wrong, f"{wrong:,} of them are")
    real = "real data" if held_out else "the training data"
    return {
        "headline": f"{count:,} of {n:,} samples look less plausible than {_percent(1 - alpha)} of {real}.",
        "filter": f"{action}; {inside} doubtful (p ≤ {alpha:g}).",
        "details": [
            _compare_with_chance(count, n, ranking.size, alpha),
            *_explain(result.verdict, alpha),
            *_qualify(held_out, ranking.size, alpha, result.about.get("repeatability", {})),
        ],
        "alert": _warn(result, count, alpha),
    }


def _compare_with_chance(doubtful: int, n: int, size: int, alpha: float) -> str:
    """The number of doubtful samples, compared with the number among real data."""
    expected = alpha * n
    text = f"About {expected:,.0f} of {n:,} real samples look this odd, too."
    # both the samples and the real data that they are compared with are drawn at random
    error = sqrt(alpha * (1 - alpha) * (1 / n + 1 / size))
    if doubtful / n > alpha + CHANCE * error:
        return f"{text} The model produces {doubtful / expected:.1f} times as many."
    if doubtful / n < alpha - CHANCE * error:
        return f"{text} The model produces fewer: its samples may cover too little of the data."
    return f"{text} As a whole, the samples look like real data."


def _explain(verdict: Verdict | None, alpha: float) -> list[str]:
    """The reasons of the doubtful samples, and the number of near copies of training data."""
    if verdict is None:
        return []
    found = []
    if reasons := verdict.count_reasons(alpha):
        listed = ", ".join(f"{REASONS.get(name, name)} ({count:,})" for name, count in reasons.items())
        found.append(f"Main reasons: {listed}.")
    if verdict.copies is not None:
        copies = int(verdict.copies.sum())
        number = {0: "No sample is a near copy", 1: "1 sample is a near copy"}.get(
            copies, f"{copies:,} samples are near copies"
        )
        found.append(f"{number} of training data{': closer to it than any real sample' if copies else ''}.")
    return found


def _qualify(held_out: bool, size: int, alpha: float, repeatability: Mapping[str, float]) -> list[str]:
    """What limits the p-values."""
    found = []
    if repeatability:
        name, least = min(repeatability.items(), key=lambda item: item[1])
        found.append(
            f"Scored again with other noise, real samples keep their order with a rank correlation of "
            f"{least:.2f} or more ({name} repeats least)."
            + (" Below 0.7, a score is largely chance." if least < LOW else "")
        )
    if not held_out:
        found.append(
            "Training data has scores that are too low, so good samples look more doubtful than they are. "
            "Hold out some data for exact p-values."
        )
    if (smallest := 1 / (size + 1)) > alpha:
        found.append(
            f"With {size:,} real samples no p-value is below {smallest:.2g}. Compare with more real data to "
            "find doubtful samples."
        )
    return found


def _warn(result: Result, doubtful: int, alpha: float) -> str | None:
    """What is wrong with the model as a whole: problems found by `flare.fit`, or mostly doubtful samples."""
    if problems := result.about.get("problems"):
        return f"Do not trust these p-values yet. {' '.join(map(str, problems))}"
    n = len(result)
    if doubtful <= n / 2:
        return None
    return (
        f"Most samples look unlike real data: {doubtful:,} of {n:,}, where about {alpha * n:,.0f} are "
        "expected. The model as a whole is off, and no filter repairs that. First check that the model was "
        "trained long enough, with this noise schedule, and on data of this range."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
