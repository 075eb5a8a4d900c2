"""What ranks samples: the verdict, if there is one, and every score."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.validation import one_of
from ..results.result import Result

VERDICT = "verdict"  # its name among those of the scores


@dataclass(frozen=True, eq=False)
class Ranking:
    """A score, or the verdict, of n samples.

    Attributes:
        name: Name of the score, or `VERDICT`.
        values: Scores (n,) float64; higher means more doubtful.
        p_value: Share of real samples with at least this value, (n,) float64; None without real data.
        size: Number of real samples that the p-values compare with.
        real: Values of these real samples, (m,) float64, if they are known.
    """

    name: str
    values: Tensor
    p_value: Tensor | None = None
    size: int | None = None
    real: Tensor | None = None

    @property
    def label(self) -> str:
        """Label of an axis."""
        return "verdict (sum of z)" if self.name == VERDICT else self.name


def names(result: Result) -> list[str]:
    """Names of everything that can rank these samples; the default comes first."""
    found = [name for name in result.scores if name != VERDICT or result.verdict is None]
    return found if result.verdict is None else [VERDICT, *found]


def rank_by(result: Result, score: str | None = None) -> Ranking:
    """The ranking by a score or the verdict; by default the verdict, or the first score without one.

    Scores of samples that are not lost must be finite.
    """
    known = names(result)
    if not known:
        raise ValueError(
            "these samples have no scores to rank them by; "
            "draw them with flare.sample(..., posterior), or set Result(scores={'name': ...})."
        )
    name = known[0] if score is None else one_of("score", score, known)
    verdict = result.verdict
    real = {} if result.reference is None else result.reference.scores
    if verdict is not None and name == VERDICT:
        sums = None
        if result.reference is not None and set(verdict.p_values) <= set(real):
            sums = result.reference.verdict({score: real[score] for score in verdict.p_values}).z
        return Ranking(name, verdict.z.cpu(), verdict.p_value.cpu(), verdict.reference_size, sums)
    values = result.scores[name].detach().cpu().double()
    _check_score(name, values, len(result))
    if verdict is None or name not in verdict.p_values:
        return Ranking(name, values)
    return Ranking(name, values, verdict.p_values[name].cpu(), verdict.reference_size, real.get(name))


def _check_score(name: str, values: Tensor, n: int) -> None:
    if values.shape != (n,):
        raise ValueError(f"score {name!r} must have shape ({n},), one per sample, got {tuple(values.shape)}.")
    if bad := int((~values.isfinite()).sum()):
        raise ValueError(
            f"{bad} of {n} values of score {name!r} are NaN or infinite; "
            "remove these samples with result.select(score.isfinite())."
        )
