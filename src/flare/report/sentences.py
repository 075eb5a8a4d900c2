"""The sentences on the first screen of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..results.drawing import Ranking
from ..results.result import Result
from ..results.verdict import CHANCE, compare_with_chance

REASONS = {
    "activations": "unlike anything the network has seen",
    "epistemic_distance": "the network is unsure how it differs from the training data",
    "influence": "it surprises the network",
    "neighbors": "far from the training data",
    "condition_fit": "does not fit its condition",
    "error_profile": "hard to denoise",
}
ADVICE = (
    "Some samples may still be bad in ways that the scores do not see. Label about 60 of them (flare "
    "calibrate) to find out how many."
)
LOW = 0.7  # rank correlation below which a score hardly repeats


def describe(result: Result, ranking: Ranking, alpha: float, bad: int | None = None) -> dict[str, Any]:
    """Sentences: `model`, `details` (a list), and `alert`, which may be None; `off` if no filter helps.

    Args:
        result: Samples without lost ones.
        ranking: Ranking by the verdict, or by a score if there is no verdict.
        alpha: Samples with a p-value of at most `alpha` are doubtful.
        bad: Number of samples that are known to be bad, if known.
    """
    n = len(result)
    truth = "" if bad is None else f" Known to be bad: {bad:,} of {n:,} ({100 * bad / n:.3g}%)."
    if ranking.p_value is None or ranking.size is None:
        return {
            "model": f"{n:,} samples, ranked by the score “{ranking.name}”: higher is more doubtful.{truth}",
            "details": [
                "There is no real data to compare with, so this page only ranks the samples. To get "
                "p-values, use flare.fit, which also scores held-out data."
            ],
            "alert": None,
            "off": False,
        }
    count, held_out = int((ranking.p_value <= alpha).sum()), result.verdict is None or result.verdict.held_out
    real = "real" if held_out else "training"
    problems, most = result.about.get("problems"), count > n / 2
    return {
        "model": _compare_with_chance(count, n, ranking.size, alpha, real) + truth,
        "details": [
            f"The p-value of a sample is the share of {real} samples that look at least as doubtful. A "
            f"sample is doubtful if p ≤ {alpha:g}.",
            *_qualify(held_out, ranking.size, alpha, result.about.get("repeatability", {})),
            *([ADVICE] if abs(compare_with_chance(count, n, ranking.size, alpha)) <= CHANCE else []),
        ],
        "alert": _warn(problems, most),
        "off": most or bool(problems),
    }


def _compare_with_chance(doubtful: int, n: int, size: int, alpha: float, real: str) -> str:
    """The number of doubtful samples, compared with the number among real data."""
    expected = alpha * n
    usual = f"About {expected:,.0f}" if expected >= 0.95 else "Fewer than 1"
    text = (
        f"{doubtful:,} of {n:,} samples look{'s' if doubtful == 1 else ''} less plausible than "
        f"{_percent(1 - alpha)} of {real} data. {usual} of {n:,} {real} samples look this doubtful, too. "
    )
    excess = compare_with_chance(doubtful, n, size, alpha)
    if excess > CHANCE:
        return f"{text}The model produces {doubtful / expected:.1f} times as many."
    if excess < -CHANCE:
        return f"{text}The model produces fewer, so it may cover too little of the data."
    return f"{text}The difference is within chance."


def _qualify(held_out: bool, size: int, alpha: float, repeatability: Mapping[str, float]) -> list[str]:
    """The limits of the p-values, as sentences."""
    found = []
    if repeatability:
        name, least = min(repeatability.items(), key=lambda item: item[1])
        found.append(
            f"With other noise, the scores of real samples have a rank correlation of at least {least:.2f} "
            f"with these scores ({name} repeats least)."
            + (" Below 0.7, a score depends largely on chance." if least < LOW else "")
        )
    if not held_out:
        found.append(
            "The scores of training data are too low, so good samples look more doubtful than they are. Hold "
            "out some data for exact p-values."
        )
    if (smallest := 1 / (size + 1)) > alpha:
        found.append(
            f"With {size:,} real samples, no p-value is below {smallest:.2g}. Compare with more real data to "
            "find doubtful samples."
        )
    return found


def _warn(problems: Sequence[object] | None, most: bool) -> str | None:
    """Problems of the model as a whole: those found by `flare.fit`, or mostly doubtful samples."""
    if problems:
        return f"Do not trust these p-values yet. {' '.join(map(str, problems))}"
    if not most:
        return None
    return (
        "Most samples look unlike real data. The model as a whole is off, and a filter cannot fix it. First "
        "check that the model was trained long enough, with this noise schedule, and on data in this range."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
