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

from ..core.version import __version__
from ..results.result import Result
from ..storage.checkpoint import atomic
from .data import payload
from .figures import as_result

SCRIPTS = ("decode.js", "chart.js", "figures.js", "page.js")
__all__ = ["write"]


def write(
    path: str | os.PathLike[str],
    result: Result | Any,
    *,
    keep: float = 0.5,
    score: str | None = None,
    title: str | None = None,
    settings: Mapping[str, object] | None = None,
    timings: Mapping[str, object] | None = None,
    summary: Sequence[Sequence[object]] | None = None,
    limit: int = 2000,
) -> None:
    """Write a page that shows the samples before and after the filter, with their uncertainty.

    >>> flare.report.write("report.html", result, title="Sines")

    Args:
        path: the HTML file; replaced atomically.
        result: samples with scores, or the output of `flare.FlarePipeline`; without a variance or a profile,
            the figures that need one are left out.
        keep: the kept fraction at which the slider starts, in (0, 1].
        score: the score that ranks the samples; by default the first.
        title: of the page.
        settings: how the samples were made, shown as a table; by default `result.about`.
        timings: seconds by name, shown as a table.
        summary: shown first: pairs (label, value), or a table whose first row is its header.
        limit: the largest number of embedded samples; if there are more, the page shows evenly spaced ranks
            and says so.
    """
    result = as_result(result)
    data = payload(result, keep, score, limit)
    versions = {
        "flare": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    page = _asset("template.html")
    absent = {
        "summary": not summary,
        "variance": "deviations" not in data,
        "profile": "profile" not in data,
        "settings": not (settings if settings is not None else result.about),
        "timings": not timings,
    }
    for name, gone in absent.items():
        if gone:
            page = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->\n", "", page, flags=re.DOTALL)
    script = "\n".join(map(_asset, SCRIPTS))
    # The content security policy allows this one script and nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = Template(page).substitute(
        title=escape(title or "FLARE report"),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=_asset("style.css"),
        script=script,
        data=_json(data),
        lead=_lead(data),
        score=escape(data["score"]),
        last=len(data["stops"]) - 1,
        start=data["start"],
        summary=_summary(summary or ()),
        settings=_table(settings if settings is not None else result.about),
        timings=_table({k: f"{v:.3g} s" if _number(v) else v for k, v in (timings or {}).items()}),
        versions=_table(versions),
    )
    with atomic(path) as partial:
        partial.write_text(html, encoding="utf-8")


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
    n, shown = data["n"], data["shown"]
    shape = " × ".join(map(str, data["shape"]))
    text = f"{n:,} {data['kind']} of shape {shape}, ranked by the score “{escape(data['score'])}”: "
    text += "a larger score means a less trustworthy sample."
    if shown < n:
        text += f" The pictures and bands show {shown:,} of them, evenly chosen over the ranks; "
        text += "counts, thresholds and the histogram are of all."
    return text + "".join(f" {escape(note)}" for note in data["notes"])


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
