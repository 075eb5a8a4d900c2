"""`flare evaluate`: compare a filter by score with a random filter, by the truth or by held-out data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command, start
from .files import READABLE
from .output import show_facts

if TYPE_CHECKING:
    from torch import Tensor

MOST_REAL = 8_000  # real samples by which the truth of a benchmark is judged
MOST_COMPARED = 5_000  # samples of each kind in an energy distance


@command()
def evaluate(
    file: options.ScoredFile,
    truth: Annotated[
        str | None, typer.Option(help="Judge by the known truth of a benchmark: {benchmarks}.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help=f"Held-out data ({', '.join(READABLE)}).")] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Also report the gap closure and AUC of a classifier of real against generated samples: "
            "{judges}. The real samples are those of --data, or of the benchmark."
        ),
    ] = None,
    keep: options.Keep = 0.5,
    score: options.ScoreInFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a filter: hallucination rates and AUROC by the truth, energy distance to held-out data.

    With --judge, also the gap closure of the filter with its bootstrap p-value, by judges that are retrained
    on the filtered samples and by fixed ones that are trained once on all samples, beside a random filter.

    Example: `flare evaluate samples.safetensors --truth grid --keep 0.5`
    """
    import torch

    from .. import bench
    from ..bench import discriminator
    from ..bench.oracles import BENCHMARKS
    from ..core.distributed import is_main
    from ..core.validation import one_of
    from ..results.filtering import keep_fraction
    from ..results.result import Result
    from .files import read_array
    from .results import choose_score

    if truth is None and data is None:
        raise ValueError("give --truth NAME for a benchmark, or --data FILE with held-out data.")
    if truth is not None:
        one_of("benchmark", truth, BENCHMARKS)
    if judge is not None:
        one_of("judge", judge, discriminator.JUDGES)
    start(0)
    result = Result.load(file)
    result = result.select(~result.lost)
    name, values = choose_score(result, score, file)
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
        held_out = bench.datasets.make(truth, min(MOST_REAL, len(bench.datasets.make(truth))), seed=1)
        if x.shape[1:] != held_out.shape[1:]:
            raise ValueError(
                f"{file} has samples of shape {tuple(x.shape[1:])}, those of {truth} have "
                f"{tuple(held_out.shape[1:])}."
            )
        facts |= _judge_by_truth(truth, x, held_out, values, kept, shuffled)
    if data is not None:
        held_out = read_array(data)
        if held_out.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"{data} has samples of shape {tuple(held_out.shape[1:])}, {file} has {tuple(x.shape[1:])}."
            )
    masks = {"all": torch.ones_like(kept), "filtered": kept, "randomly_filtered": shuffled}
    facts |= _measure_distances(x, held_out, masks)
    if judge is not None and is_main():
        facts |= _measure_gaps(x, held_out, kept, shuffled, judge)
    show_facts(json, quiet, facts, last=f"{keep:.0%} kept by {name}")


def _judge_by_truth(
    truth: str, x: Tensor, real: Tensor, values: Tensor, kept: Tensor, shuffled: Tensor
) -> dict[str, Any]:
    """Hallucination rates before and after both filters, and the AUROC of the score."""
    import torch

    from ..bench import metrics, oracles
    from ..core.distributed import rank, size, sum_over_processes

    found, own = torch.zeros(len(x)), slice(rank(), None, size())
    if len(x[own]):
        found[own] = oracles.find_hallucinations(truth, x[own], real).float()
    sum_over_processes(found)
    bad = found.bool()
    return {
        "hallucination_rate": metrics.rate(bad),
        "after_the_filter": metrics.rate(bad, kept),
        "after_a_random_filter": metrics.rate(bad, shuffled),
        "auroc": metrics.auroc(values, bad) if 0 < int(bad.sum()) < len(bad) else None,
    }


def _measure_distances(x: Tensor, held_out: Tensor, masks: Mapping[str, Tensor]) -> dict[str, float]:
    """Energy distances of the samples under each mask to held-out data; processes share the masks."""
    import torch

    from ..bench import metrics
    from ..core.distributed import own_items, sum_over_processes

    distances = torch.zeros(len(masks), dtype=torch.float64)
    for place, mask in own_items(list(enumerate(masks.values()))):
        distances[place] = metrics.energy_distance(x[mask][:MOST_COMPARED], held_out[:MOST_COMPARED])
    sum_over_processes(distances)
    return {f"energy_distance_{name}": d for name, d in zip(masks, distances.tolist(), strict=True)}


def _measure_gaps(x: Tensor, real: Tensor, kept: Tensor, shuffled: Tensor, judge: Any) -> dict[str, Any]:
    """Gap closures of both filters by both readings, and the AUC of the judges."""
    from ..bench.discriminator import READINGS, measure_filter

    facts: dict[str, Any] = {}
    for reading in READINGS:
        try:
            found, random = (
                measure_filter(real, x, mask, reading=reading, by=judge) for mask in (kept, shuffled)
            )
        except ImportError as error:
            raise ValueError(f"--judge {judge}: {error}.") from error
        facts |= {
            "judge_accuracy_all": found.accuracy_unfiltered,
            "judge_auc_all": found.auc_unfiltered,
            f"{reading}_accuracy": found.accuracy,
            f"{reading}_auc": found.auc,
            f"{reading}_gap_closure": _or_none(found.gap_closure),
            f"{reading}_gap_closure_interval": [_or_none(end) for end in found.interval],
            f"{reading}_p_value": found.p_value,
            f"{reading}_gap_closure_of_a_random_filter": _or_none(random.gap_closure),
        }
    return facts


def _or_none(value: float) -> float | None:
    """The number, or None if it is infinite, which JSON cannot say."""
    return value if math.isfinite(value) else None
