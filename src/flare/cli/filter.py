"""`flare filter`: keep the samples with the lowest scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Json, Quiet, app, check_keep, report

TYPICAL = 0.9  # the share of real data whose scores are typical


@app.command("filter")
def filter_(
    file: Annotated[Path, typer.Argument(help="Samples with scores, as `flare sample` writes them.")],
    keep: Annotated[
        float | None, typer.Option(callback=check_keep, help="The share of the samples to keep.")
    ] = None,
    below: Annotated[float | None, typer.Option(help="Or keep every score of at most this.")] = None,
    regions: Annotated[
        int | None, typer.Option("--strata", help="With --keep: that share of each of so many regions.")
    ] = None,
    typical: Annotated[
        str | None,
        typer.Option(
            help="With --keep: scores up to this, typical of real data, count as equal. A number, or a file "
            "of real data that `flare score` wrote: what nine of ten of its scores stay below."
        ),
    ] = None,
    score: Annotated[str | None, typer.Option(help="Which score, if the file has several.")] = None,
    target: Annotated[Path, typer.Option("--out", help="A .safetensors, .npz or .csv file.")] = Path(
        "kept.safetensors"
    ),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep the samples that can be trusted most.

    Example: `flare filter samples.safetensors --keep 0.5 --strata 16 --out kept.npz`
    """
    from ..results.filtering import keep_below, keep_fraction, strata
    from ..results.formats import check_suffix
    from ..results.result import Result
    from .results import chosen_score

    if (keep is None) == (below is None):
        raise ValueError("give --keep FRACTION or --below SCORE, one of the two.")
    if keep is None and (regions is not None or typical is not None):
        raise ValueError("--strata and --typical go with --keep FRACTION; --below keeps by the score alone.")
    check_suffix(target)
    result = Result.load(file)
    name, values = chosen_score(result, score, file)
    if keep is not None:
        labels = None if regions is None else strata(result.samples, regions)
        most = None if typical is None else _typical(typical, name)
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
    report(json, quiet, facts, last=str(target))


def _typical(text: str, name: str) -> float:
    """The score that is typical of real data: as it is typed, or of the scores of a file."""
    try:
        return float(text)
    except ValueError:
        pass
    from ..results.result import Result
    from .results import chosen_score

    if not Path(text).is_file():
        raise ValueError(f"--typical must be a number or a file that `flare score` wrote, got {text!r}.")
    _, real = chosen_score(Result.load(Path(text)), name, Path(text))
    return float(real.double().nanquantile(TYPICAL))
