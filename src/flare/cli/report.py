"""`flare report`: write results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .app import command
from .output import show_facts


@command()
def report(
    file: options.ScoredFile,
    target: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    keep: Annotated[
        float,
        typer.Option(callback=options.check_keep, help="Fraction of the samples kept when the page opens."),
    ] = 0.5,
    score: options.ScoreInFile = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a self-contained page: samples by score, a filter slider, variances and step profiles.

    Example: `flare report samples.safetensors --out report.html`
    """
    from ..report import write
    from ..results.result import Result
    from .results import choose_score

    result = Result.load(file)
    name, _ = choose_score(result, score, file)
    settings = dict(result.about)
    timings = {"seconds": settings.pop("seconds")} if "seconds" in settings else None
    write(target, result, keep=keep, score=name, title=title or file.stem, settings=settings, timings=timings)
    show_facts(json, quiet, {"report": str(target), "bytes": target.stat().st_size}, last=str(target))
