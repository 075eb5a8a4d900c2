"""`flare filter`: keep the samples with the lowest scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .app import command
from .output import show_facts

TYPICAL = 0.9  # quantile of the scores of real data up to which a score is typical


@command("filter")
def filter_(
    file: options.ScoredFile,
    keep: Annotated[
        float | None, typer.Option(callback=options.check_keep, help="Fraction of the samples to keep.")
    ] = None,
    below: Annotated[
        float | None, typer.Option(help="Or keep all samples with a score of at most this.")
    ] = None,
    regions: Annotated[
        int | None,
        typer.Option("--strata", help="With --keep: keep that fraction in each of this many regions."),
    ] = None,
    typical: Annotated[
        str | None,
        typer.Option(
            help="With --keep: treat all scores up to this one as ties. A number, or a file of real data "
            "that `flare score` wrote, which stands for the 90% quantile of its scores."
        ),
    ] = None,
    score: options.ScoreInFile = None,
    target: options.ResultFile = Path("kept.safetensors"),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Keep the samples with the lowest scores.

    Example: `flare filter samples.safetensors --keep 0.5 --strata 16 --out kept.npz`
    """
    from ..results.filtering import keep_below, keep_fraction, strata
    from ..results.formats import check_suffix
    from ..results.result import Result
    from .results import choose_score

    if (keep is None) == (below is None):
        raise ValueError("give --keep FRACTION or --below SCORE, one of the two.")
    if keep is None and (regions is not None or typical is not None):
        raise ValueError("--strata and --typical go with --keep FRACTION; --below uses the score alone.")
    check_suffix(target)
    result = Result.load(file)
    name, values = choose_score(result, score, file)
    if keep is not None:
        labels = None if regions is None else strata(result.samples, regions)
        most = None if typical is None else _parse_typical(typical, name)
        mask = keep_fraction(values, keep, typical=most, strata=labels)
    else:
        mask = keep_below(values, below)  # type: ignore[arg-type]
    if not mask.any():
        raise ValueError(
            f"no sample has a {name} of at most {below}; the lowest is "
            f"{float(values[~values.isnan()].min()):.6g}."
        )
    kept = result.select(mask)
    kept.save(target, filtered_by=name, keep=keep, below=below, strata=regions, typical=typical)
    facts = {
        "kept": str(target),
        "by": name,
        "n": len(kept),
        "of": len(result),
        **({"lost": lost} if (lost := int(values.isnan().sum())) else {}),
        "threshold": float(values[mask].max()),
    }
    show_facts(json, quiet, facts, last=str(target))


def _parse_typical(text: str, name: str) -> float:
    """Parse the largest typical score: a number, or a file of scored real data."""
    try:
        return float(text)
    except ValueError:
        pass
    from ..results.result import Result
    from .results import choose_score

    if not Path(text).is_file():
        raise ValueError(f"--typical must be a number or a file that `flare score` wrote, got {text!r}.")
    _, real = choose_score(Result.load(Path(text)), name, Path(text))
    return float(real.double().nanquantile(TYPICAL))
