"""Reports: results as one self-contained HTML file, without network, fonts or libraries."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

import torch
from torch import Tensor

from ..core.version import __version__
from ..results.result import Result
from ..storage.checkpoint import atomic
from .data import Options, payload
from .figures import as_result, drop_lost
from .rankings import rank_by
from .words import describe

SCRIPTS = (
    "decode.js", "ranking.js", "chart.js", "points.js", "series.js", "images.js",
    "bands.js", "histogram.js", "rates.js", "card.js", "page.js",
)  # fmt: skip
__all__ = ["write"]


def write(
    path: str | os.PathLike[str],
    result: Result | Any,
    *,
    keep: float = 0.5,
    alpha: float = 0.05,
    score: str | None = None,
    title: str | None = None,
    settings: Mapping[str, object] | None = None,
    timings: Mapping[str, object] | None = None,
    summary: Sequence[Sequence[object]] | None = None,
    limit: int = 2000,
    data: Tensor | None = None,
    rows: Tensor | None = None,
    groups: Tensor | Sequence[object] | None = None,
    bad: Tensor | None = None,
) -> None:
    """Write a page that says which samples to trust, and shows them.

    It opens with the verdict in words, a suggested threshold, and the worst and the best samples. A slider
    over the threshold moves all figures, and the samples that it keeps can be saved as CSV.

    >>> flare.report.write("report.html", result, title="Sines")

    Args:
        path: the HTML file; replaced atomically.
        result: samples with scores, or the output of `flare.FlarePipeline`; without a verdict, a variance or
            a profile, what needs one is left out.
        keep: the kept fraction at which the slider starts if there are no p-values, in (0, 1].
        alpha: the suggested p-value, at which the slider starts; in (0, 1).
        score: what ranks the samples when the page opens; by default the verdict, or the first score if
            there is none.
        title: of the page.
        settings: how the samples were made, shown as a table; by default `result.about`.
        timings: seconds by name, shown as a table.
        summary: pairs (label, value), or a table whose first row is its header.
        limit: the largest number of samples with pictures; if there are more, the page shows evenly spaced
            ranks and says so.
        data: the training data of the verdict's `nearest`, (N, *shape), to show the nearest training sample
            of each sample; `Scorer.report` gives what the scorer has kept.
        rows: which rows of the training data `data` has, (K,), if it has only some of them.
        groups: one label per sample, (n,), such as its class or `flare.strata(result.samples)`; the page
            shows the share of each group before and after the filter.
        bad: which samples are known to be bad, (n,) bool; the page shows their rate before and after the
            filter.
    """
    result = as_result(result)
    content = payload(result, Options(keep, alpha, score, limit, data, rows, groups, bad))
    scored = drop_lost(result)[0]
    answer = rank_by(scored, None if scored.verdict is not None else score)
    words = describe(scored, answer, alpha, keep)
    settings = result.about if settings is None else settings
    absent = {
        "alert": words.alert is None,
        "summary": not summary,
        "groups": groups is None,
        "variance": "deviations" not in content,
        "profile": "profile" not in content,
        "settings": not settings,
        "timings": not timings,
    }
    script = "\n".join(map(_asset, SCRIPTS))
    # The content security policy allows this one script and nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = Template(_template(absent)).substitute(
        title=escape(title or "FLARE report"),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=_asset("style.css"),
        script=script,
        data=_json(content),
        lead=_lead(content),
        alert=escape(words.alert or ""),
        headline=escape(words.headline),
        suggestion=escape(words.suggestion),
        details=_list(words.details),
        summary=_summary(summary or ()),
        settings=_table(settings),
        timings=_table({k: f"{v:.3g} s" if _number(v) else v for k, v in (timings or {}).items()}),
        versions=_table(_versions()),
    )
    with atomic(path) as partial:
        partial.write_text(html, encoding="utf-8")


def _template(absent: Mapping[str, bool]) -> str:
    """The page without the absent sections."""
    page = _asset("template.html")
    for name, gone in absent.items():
        if gone:
            page = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->\n", "", page, flags=re.DOTALL)
    return page


def _versions() -> dict[str, str]:
    return {"flare": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _lead(data: dict[str, Any]) -> str:
    n, shown = data["n"], data["even"]
    shape = " × ".join(map(str, data["shape"]))
    text = f"{n:,} {data['kind']} of shape {shape}."
    if size := data["rankings"][0].get("size"):
        source = "held-out real" if data["held_out"] else "training"
        text = f"{text[:-1]}, compared with {size:,} {source} samples."
    if shown < n:
        text += f" The pictures and bands show {shown:,} of them, evenly chosen over the ranks; "
        text += f"counts, thresholds and the histogram are of all {n:,}."
    return text + "".join(f" {escape(note)}" for note in data["notes"])


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="details">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _table(rows: Mapping[str, object]) -> str:
    body = "".join(
        f'<tr><th scope="row">{_text(key)}</th><td>{_text(value)}</td></tr>' for key, value in rows.items()
    )
    return f"<table>{body}</table>"


def _summary(rows: Sequence[Sequence[object]]) -> str:
    """Pairs as large numbers, anything else as a table."""
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            "summary must be pairs (label, value) or rows of one length with a header first, "
            f"got rows of lengths {[len(row) for row in rows]}."
        )
    if all(len(row) == 2 for row in rows):
        pairs = "".join(f"<div><dt>{_text(a)}</dt><dd>{_text(b)}</dd></div>" for a, b in rows)
        return f'<dl class="cards">{pairs}</dl>'
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows[1:]
    )
    wide = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{wide}</div>'
