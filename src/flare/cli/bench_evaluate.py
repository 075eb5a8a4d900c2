"""The worker of `flare bench evaluate`: compare a filter by score with a random filter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..bench import datasets, discriminator, metrics, oracles
from ..core import distributed
from ..core.validation import one_of
from ..results.result import Result
from .output import or_none
from .samples_in import read_array

MOST_REAL = 8_000  # real samples by which the truth of a benchmark is judged
MOST_COMPARED = 5_000  # samples of each kind in an energy distance


def evaluate_filter(
    file: Path, truth: str | None, data: Path | None, judge: str | None, keep: float, score: str | None
) -> tuple[str, dict[str, Any]]:
    """Measure a filter by the truth of a benchmark, by held-out data, and by a judge.

    Returns:
        The name of the score, and the figures by name.
    """
    if truth is not None:
        one_of("benchmark", truth, oracles.BENCHMARKS)
    if judge is not None:
        one_of("judge", judge, discriminator.JUDGES)
    result = Result.load(file)
    result = result.select(~result.lost)
    name, values = _choose_score(result, score, file)
    kept = metrics.keep_lowest(values, keep)
    if kept.sum() < 2:
        raise ValueError(
            f"--keep {keep:g} keeps {int(kept.sum())} of the {len(values)} samples of {file}; distances to "
            "data need at least 2. Keep or draw more."
        )
    random = metrics.keep_lowest(torch.rand(len(values), generator=torch.Generator().manual_seed(0)), keep)
    facts: dict[str, Any] = {"score": name, "n": len(result), "kept": int(kept.sum())}
    x = result.samples.float()
    if truth is not None:
        count = min(MOST_REAL, len(datasets.make(truth)))
        real = datasets.make(truth, count, seed=1)
        if real.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"{truth} has samples of shape {tuple(real.shape[1:])}, {file} has {tuple(x.shape[1:])}."
            )
        facts |= _judge_by_truth(truth, x, real, values, kept, random)
    if data is not None:
        real = read_array(data, tuple(x.shape[1:]))
    masks = {"all": torch.ones_like(kept), "filtered": kept, "randomly_filtered": random}
    facts |= _measure_distances(x, real, masks)
    if judge is not None and distributed.is_main():
        facts |= _measure_gaps(x, real, kept, random, judge)
    return name, facts


def _choose_score(result: Result, name: str | None, file: Path) -> tuple[str, Tensor]:
    """The score of this name; by default the verdict's z, or the first score."""
    scores = dict(result.scores)
    if result.verdict is not None:
        scores = {"verdict": result.verdict.z, **scores}
    if not scores:
        raise ValueError(f"{file} has samples without scores; draw or score them with a scorer.")
    chosen = next(iter(scores)) if name is None else one_of(f"score of {file}", name, scores)
    return chosen, scores[chosen]


def _judge_by_truth(
    truth: str, x: Tensor, real: Tensor, values: Tensor, kept: Tensor, random: Tensor
) -> dict[str, Any]:
    """Hallucination rates before and after both filters, and the AUROC of the score."""
    found, own = torch.zeros(len(x)), slice(distributed.rank(), None, distributed.size())
    if len(x[own]):
        found[own] = oracles.find_hallucinations(truth, x[own], real).float()
    distributed.sum_over_processes(found)
    bad = found.bool()
    return {
        "hallucination_rate": metrics.rate(bad),
        "after_the_filter": metrics.rate(bad, kept),
        "after_a_random_filter": metrics.rate(bad, random),
        "auroc": metrics.auroc(values, bad) if 0 < int(bad.sum()) < len(bad) else None,
    }


def _measure_distances(x: Tensor, real: Tensor, masks: Mapping[str, Tensor]) -> dict[str, float]:
    """Energy distances of the samples under each mask to real data; processes share the masks."""
    distances = torch.zeros(len(masks), dtype=torch.float64)
    for place, mask in distributed.own_items(list(enumerate(masks.values()))):
        distances[place] = metrics.energy_distance(x[mask][:MOST_COMPARED], real[:MOST_COMPARED])
    distributed.sum_over_processes(distances)
    return {f"energy_distance_{name}": d for name, d in zip(masks, distances.tolist(), strict=True)}


def _measure_gaps(x: Tensor, real: Tensor, kept: Tensor, random: Tensor, judge: Any) -> dict[str, Any]:
    """Gap closures of both filters by both readings, and the AUC of the judges."""
    facts: dict[str, Any] = {}
    for reading in discriminator.READINGS:
        found, floor = (
            discriminator.measure_filter(real, x, mask, reading=reading, by=judge) for mask in (kept, random)
        )
        facts |= {
            "judge_accuracy_all": found.accuracy_unfiltered,
            "judge_auc_all": found.auc_unfiltered,
            f"{reading}_accuracy": found.accuracy,
            f"{reading}_auc": found.auc,
            f"{reading}_gap_closure": or_none(found.gap_closure),
            f"{reading}_gap_closure_interval": [or_none(end) for end in found.interval],
            f"{reading}_p_value": found.p_value,
            f"{reading}_gap_closure_of_a_random_filter": or_none(floor.gap_closure),
        }
    return facts
