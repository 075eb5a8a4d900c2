"""A result on one screen: the verdict in words first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .result_files import OPTIONAL

if TYPE_CHECKING:
    from .result import Result


def as_text(result: Result) -> str:
    """The repr of a result."""
    shape, dtype = tuple(result.samples.shape[1:]), str(result.samples.dtype).removeprefix("torch.")
    heading = f"{len(result)} samples of shape {shape}, {dtype} on {result.samples.device}"
    titles = [heading] if result.verdict is None else [repr(result.verdict), heading]
    return "\n  ".join([f"Result: {titles[0]}", *titles[1:], *_facts(result)])


HIDDEN = ("lost", "problems")  # shown in separate lines


def _facts(result: Result) -> Iterator[str]:
    """What there is to say, in lines."""
    for problem in result.about.get("problems", []):
        yield f"PROBLEM of the model: {problem}"
    if verdict := result.verdict:
        kind = "held-out" if verdict.held_out else "training"
        yield f"compared with: {verdict.reference_size:,} {kind} samples"
        if reasons := verdict.count_reasons():
            listed = ", ".join(f"{name} {count:,}" for name, count in reasons.items())
            yield f"suspicious because of: {listed}"
    if len(result) and (lost := int(result.lost.sum())):
        yield f"lost: {lost} of {len(result)} have NaN or infinity"
    for name, score in result.scores.items():
        yield f"score {name}: {_format_quantiles(score)}"
    if present := [name for name in OPTIONAL if getattr(result, name) is not None]:
        yield f"with: {', '.join(present)}"
    if made := [f"{name}={_shorten(value)}" for name, value in result.about.items() if name not in HIDDEN]:
        yield f"made by: {_shorten(', '.join(made), 500)}"


def _format_quantiles(score: Tensor) -> str:
    """Three quantiles of the scores that are not NaN."""
    found = score[~score.isnan()].double().sort().values
    if not len(found):
        return "none" if not len(score) else "all NaN"
    low, middle, high = (float(found[round(fraction * (len(found) - 1))]) for fraction in (0.1, 0.5, 0.9))
    return f"10% {low:.4g}, median {middle:.4g}, 90% {high:.4g}"


def _shorten(value: Any, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"
