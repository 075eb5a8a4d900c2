"""`flare evaluate`: what a filter by score does, against the truth or held-out data and a random filter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Data, Json, Keep, Quiet, app, report, start


@app.command()
def evaluate(
    file: Annotated[Path, typer.Argument(help="Samples with scores, as `flare sample` writes them.")],
    truth: Annotated[
        str | None, typer.Option(help="Judge by the known truth of grid, sines, chirp or damped.")
    ] = None,
    data: Data = None,
    keep: Keep = 0.5,
    score: Annotated[str | None, typer.Option(help="Which score, if the file has several.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a filter: hallucination rates and AUROC by the truth, energy distance to held-out data.

    Example: `flare evaluate samples.safetensors --truth grid --keep 0.5`
    """
    import torch

    from .. import zoo
    from ..core.distributed import own_items, rank, size, sum_over_processes
    from ..evaluation import metrics, oracles
    from ..results.filtering import keep_fraction
    from ..results.result import Result
    from .files import read_array
    from .results import chosen_score

    if truth is None and data is None:
        raise ValueError("give --truth NAME for a benchmark, or --data FILE with held-out data.")
    start(0)
    result = Result.load(file)
    result = result.select(~result.lost)
    name, values = chosen_score(result, score, file)
    kept = keep_fraction(values, keep)
    if kept.sum() < 2:
        raise ValueError(
            f"--keep {keep:g} keeps {int(kept.sum())} of the {len(values)} samples of {file}; distances to "
            "data need at least 2. Keep or draw more."
        )
    shuffled = keep_fraction(torch.rand(len(values), generator=torch.Generator().manual_seed(0)), keep)
    facts: dict[str, Any] = {"score": name, "n": len(result), "kept": int(kept.sum())}
    x = result.samples.float()
    if truth is not None:
        real = zoo.datasets.make(truth, min(8_000, len(zoo.datasets.make(truth))), seed=1)
        if tuple(x.shape[1:]) != tuple(real.shape[1:]):
            raise ValueError(
                f"{file} has samples of shape {tuple(x.shape[1:])}, those of {truth} have "
                f"{tuple(real.shape[1:])}."
            )
        found, own = torch.zeros(len(x)), slice(rank(), None, size())
        if len(x[own]):
            found[own] = oracles.find_hallucinations(truth, x[own], real).float()
        sum_over_processes(found)
        bad = found.bool()
        facts |= {
            "hallucination_rate": metrics.rate(bad),
            "after_the_filter": metrics.rate(bad, kept),
            "after_a_random_filter": metrics.rate(bad, shuffled),
            "auroc": metrics.auroc(values, bad) if 0 < int(bad.sum()) < len(bad) else None,
        }
        held_out = real
    if data is not None:
        held_out = read_array(data)
        if held_out.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"{data} has samples of shape {tuple(held_out.shape[1:])}, {file} has {tuple(x.shape[1:])}."
            )
    reference = held_out[:5_000]
    masks = {"all": torch.ones_like(kept), "filtered": kept, "randomly_filtered": shuffled}
    distances = torch.zeros(len(masks), dtype=torch.float64)
    for place, mask in own_items(list(enumerate(masks.values()))):
        distances[place] = metrics.energy_distance(x[mask][:5_000], reference)
    sum_over_processes(distances)
    facts |= {f"energy_distance_{k}": d for k, d in zip(masks, distances.tolist(), strict=True)}
    report(json, quiet, facts, last=f"{keep:.0%} kept by {name}")
