"""By what samples are ranked: the verdict, if there is one, and every score."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.validation import one_of
from ..results.result import Result

VERDICT = "verdict"  # its name beside those of the scores


@dataclass(frozen=True, eq=False)
class Ranking:
    """A score, or the verdict, of n samples.

    Attributes:
        name: of the score, or `VERDICT`.
        values: (n,) float64; higher means less trustworthy.
        p_value: share of real samples with at least this value, (n,) float64; None without real data.
        size: how many real samples the p-values compare with.
        real: the values of these real samples, (m,) float64, if they are known.
    """

    name: str
    values: Tensor
    p_value: Tensor | None = None
    size: int | None = None
    real: Tensor | None = None

    @property
    def label(self) -> str:
        """What the values are, for an axis."""
        return "verdict (sum of z)" if self.name == VERDICT else self.name


def names(result: Result) -> list[str]:
    """Everything that can rank these samples; the default comes first."""
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
    verdict, reference = result.verdict, result.reference
    if name == VERDICT and verdict is not None:
        p_value = _clean(verdict.p_value)
        return Ranking(name, _clean(verdict.z), p_value, verdict.reference_size, _real_verdict(result))
    values = _clean(result.scores[name])
    _check_score(name, values, len(result))
    if reference is not None and name in reference.scores:
        p_value = reference.p_value(name, values)
        return Ranking(name, values, p_value, len(reference), reference.scores[name])
    if verdict is not None and name in verdict.p_values:
        return Ranking(name, values, _clean(verdict.p_values[name]), verdict.reference_size)
    return Ranking(name, values)


def is_held_out(result: Result) -> bool:
    """Whether the real data that the samples are compared with was held out from training."""
    source = result.reference if result.verdict is None else result.verdict
    return source is None or source.held_out


def _real_verdict(result: Result) -> Tensor | None:
    """The verdict on the real data, by the scores of that on the samples."""
    if result.reference is None or result.verdict is None:
        return None
    scores = result.reference.scores
    if not set(result.verdict.p_values) <= set(scores):
        return None
    return result.reference.verdict({name: scores[name] for name in result.verdict.p_values}).z


def _clean(values: Tensor) -> Tensor:
    return values.detach().cpu().double()


def _check_score(name: str, values: Tensor, n: int) -> None:
    if values.shape != (n,):
        raise ValueError(f"score {name!r} must have shape ({n},), one per sample, got {tuple(values.shape)}.")
    if bad := int((~values.isfinite()).sum()):
        raise ValueError(
            f"{bad} of {n} values of score {name!r} are NaN or infinite; "
            "remove these samples with result.select(score.isfinite())."
        )
