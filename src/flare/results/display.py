"""A result on one screen: the verdict in words first, as plain text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .result_files import OPTIONAL

if TYPE_CHECKING:
    from .result import Result


def as_text(result: Result) -> str:
    """The repr of a result."""
    rows = [f"  {label}: {text}" if text else f"  {label}" for label, text in _facts(result)]
    heading = _heading(result)
    title = f"Result: {heading}"
    if result.verdict is not None:
        title, rows = f"Result: {result.verdict!r}", [f"  {heading}", *rows]
    return "\n".join([title, *rows])


def as_html(result: Result) -> str:
    """The same as a small table; all of its text is escaped."""
    title = _heading(result) if result.verdict is None else repr(result.verdict)
    facts = [] if result.verdict is None else [("samples", _heading(result))]
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(label)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for label, text in [*facts, *_facts(result)]
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>"


def _heading(result: Result) -> str:
    shape, dtype = tuple(result.samples.shape[1:]), str(result.samples.dtype).removeprefix("torch.")
    return f"{len(result)} samples of shape {shape}, {dtype} on {result.samples.device}"


HIDDEN = ("lost", "problems")  # shown in separate lines


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """What there is to say, as pairs of a label and a text."""
    for problem in result.about.get("problems", []):
        yield "PROBLEM of the model", problem
    if verdict := result.verdict:
        kind = "held-out" if verdict.held_out else "training"
        yield "compared with", f"{verdict.reference_size:,} {kind} samples"
        if reasons := verdict.count_reasons():
            yield "suspicious because of", ", ".join(f"{name} {count:,}" for name, count in reasons.items())
    if len(result) and (lost := int(result.lost.sum())):
        yield "lost", f"{lost} of {len(result)} have NaN or infinity"
    for name, score in result.scores.items():
        yield f"score {name}", _format_quantiles(score)
    if present := [name for name in OPTIONAL if getattr(result, name) is not None]:
        yield "with", ", ".join(present)
    if made := [f"{name}={_shorten(value)}" for name, value in result.about.items() if name not in HIDDEN]:
        yield "made by", _shorten(", ".join(made), 500)


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
