"""`flare report`: write results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .app import command
from .claims import claim_new, refuse_existing
from .output import show_facts


@command()
def report(
    file: options.ScoredFile,
    target: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    keep: Annotated[
        float,
        typer.Option(
            callback=options.check_keep,
            help="Fraction of the samples kept when the page opens, if they have no p-values.",
        ),
    ] = 0.5,
    p_value: Annotated[
        float,
        typer.Option(
            callback=options.check_p_value,
            help="Suggested p-value, at which the page opens if the samples have p-values.",
        ),
    ] = 0.05,
    score: options.ScoreInFile = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The training data that the samples were compared with, to show the nearest."),
    ] = None,
    regions: Annotated[
        int | None, typer.Option("--strata", help="Show the share of each of this many regions.")
    ] = None,
    overwrite: options.Overwrite = False,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a self-contained page: the verdict, the samples, and a slider over the threshold.

    Example: `flare report samples.safetensors --out report.html`
    """
    from ..report import write
    from ..results.filtering import strata
    from ..results.result import Result
    from .files import read_array
    from .results import choose_score
    from .tables import is_table

    refuse_existing(target, overwrite)
    if is_table(file):
        raise ValueError(f"{file} is a table of verdicts without samples: score into a .safetensors file.")
    result = Result.load(file)
    if result.verdict is None or score not in (None, "verdict"):
        score, _ = choose_score(result, score, file)
    settings = {key: value for key, value in result.about.items() if key != "names"}
    timings = {"seconds": settings.pop("seconds")} if "seconds" in settings else None
    with claim_new(target):
        write(
            target, result, keep=keep, alpha=p_value, score=score, title=title or file.stem,
            settings=settings, timings=timings,
            data=None if data is None else read_array(data),
            groups=None if regions is None else strata(result.samples, regions),
        )  # fmt: skip
        show_facts(json, quiet, {"report": str(target), "bytes": target.stat().st_size}, last=str(target))
