"""`flare filter`: keep the samples that are plausible, or those with the lowest scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command
from .claims import claim_new, refuse_existing
from .output import show_facts
from .tables import filter_table, is_table

if TYPE_CHECKING:
    from torch import Tensor

    from ..results.result import Result

TYPICAL = 0.9  # quantile of the scores of real data up to which a score is typical


@command("filter")
def filter_(
    file: Annotated[
        Path,
        typer.Argument(
            help="Samples with scores, as `flare sample` and `flare score` write them, or a table."
        ),
    ],
    p_value: Annotated[
        float | None,
        typer.Option(
            callback=options.check_p_value,
            help="Keep all samples with a p-value above this: with 0.05, about 95% of real data would stay.",
        ),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(callback=options.check_keep, help="Or keep this fraction, the best.")
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
    target: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .safetensors, .npz or .csv file to write, or .npy for the samples alone; "
            "kept.safetensors by default, or kept.csv for a table.",
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Keep the samples that look like real data, or those with the lowest scores.

    A table of `flare score --out scores.csv` is filtered by --p-value or --keep into another table.

    Example: `flare filter samples.safetensors --p-value 0.05 --out kept.npz`

    The better half: `flare filter samples.safetensors --keep 0.5 --strata 16 --out kept.npz`
    """
    from ..results.arrays import save_npy
    from ..results.formats import check_suffix
    from ..results.result import Result
    from .results import choose_score

    if [p_value, keep, below].count(None) != 2:
        raise ValueError("give --p-value P, --keep FRACTION or --below SCORE, one of them.")
    if keep is None and (regions is not None or typical is not None):
        raise ValueError("--strata and --typical go with --keep FRACTION.")
    table = is_table(file)
    target = Path("kept.csv" if table else "kept.safetensors") if target is None else target
    if target.suffix != ".npy":
        check_suffix(target)
    refuse_existing(target, overwrite)
    if table:
        if score is not None or below is not None or regions is not None or typical is not None:
            raise ValueError(f"{file} is a table of verdicts: filter it with --p-value or --keep alone.")
        with claim_new(target):
            show_facts(json, quiet, filter_table(file, target, keep, p_value), last=str(target))
        return
    result = Result.load(file)
    if p_value is not None and result.verdict is None:
        raise ValueError(
            f"{file} has no p-values, because its samples were not compared with real data; fit the run "
            "again (`flare fit`) and score them without --score, or use --keep."
        )
    name, values = choose_score(result, score, file)
    mask = _choose_mask(result, values, name, (p_value, keep, below), (regions, typical))
    if not mask.any():
        what, best = ("p-value above", result.p_value.nan_to_num().max()) if p_value else (
            f"{name} of at most", values[~values.isnan()].min()
        )  # fmt: skip
        raise ValueError(f"no sample has a {what} {p_value or below}; the best is {float(best):.6g}.")
    about: dict[str, Any] = {"filtered_by": name, "p_value": p_value, "keep": keep, "below": below}
    if names := result.about.get("names"):
        about["names"] = [one for one, kept in zip(names, mask.tolist(), strict=True) if kept]
    kept = result.select(mask)
    facts = {
        "kept": str(target),
        "by": "p-value" if p_value is not None else name,
        "n": len(kept),
        "of": len(result),
        **({"lost": lost} if (lost := int(values.isnan().sum())) else {}),
        "threshold": float(values[mask].max()) if p_value is None else p_value,
    }
    with claim_new(target):
        if target.suffix == ".npy":
            save_npy(target, kept.samples.numpy())
        else:
            kept.save(target, **about, strata=regions, typical=typical)
        show_facts(json, quiet, facts, last=str(target))


def _choose_mask(
    result: Result,
    values: Tensor,
    name: str,
    limits: tuple[float | None, float | None, float | None],
    balance: tuple[int | None, str | None],
) -> Tensor:
    """Which samples are kept.

    Args:
        result: all samples.
        values: their scores.
        name: of the score.
        limits: --p-value, --keep and --below; one of them is given.
        balance: --strata and --typical.
    """
    from ..results.filtering import keep_below, keep_fraction, strata

    (p_value, keep, below), (regions, typical) = limits, balance
    if p_value is not None:
        return result.trusted(p_value)
    if keep is None:
        assert below is not None
        return keep_below(values, below)
    labels = None if regions is None else strata(result.samples, regions)
    most = None if typical is None else _parse_typical(typical, name)
    return keep_fraction(values, keep, typical=most, strata=labels)


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
