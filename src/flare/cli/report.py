"""`flare report`: results as one HTML page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Json, Quiet, app, check_keep
from .app import report as say


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="Samples with scores, as `flare sample` writes them.")],
    target: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    keep: Annotated[
        float, typer.Option(callback=check_keep, help="The share kept when the page opens.")
    ] = 0.5,
    score: Annotated[str | None, typer.Option(help="Which score, if the file has several.")] = None,
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a self-contained page: samples by score, a slider for the filter, variance, step profile.

    Example: `flare report samples.safetensors --out report.html`
    """
    from ..report import write
    from ..results.result import Result
    from .results import chosen_score

    result = Result.load(file)
    name, _ = chosen_score(result, score, file)
    settings = dict(result.about)
    timings = {"seconds": settings.pop("seconds")} if "seconds" in settings else None
    write(target, result, keep=keep, score=name, title=title or file.stem, settings=settings, timings=timings)
    say(json, quiet, {"report": str(target), "bytes": target.stat().st_size}, last=str(target))
