"""How a scorer judges samples: influence and neighbors, compared with the same of real data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import Cond, take_rows
from ..core.memory import BatchSize
from ..core.progress import warn
from ..model import Model
from ..posteriors import Posterior
from ..results.filters import assign_regions
from ..results.result import Result
from ..results.verdict import Reference, decide
from ..sampling.existing import score_in_batches
from ..sampling.finished import FinishedScores, make_renoisings
from ..scores.neighbors import Neighbors, TrainingData

SCORES = ("influence", "neighbors")  # what the verdict adds up; without training data, the first alone


def compute_scores(
    model: Model,
    posterior: Posterior,
    training: TrainingData | None,
    seed: int,
    x: Tensor,
    cond: Cond,
    batch_size: BatchSize = "auto",
    memory: int | None = None,
) -> tuple[dict[str, Tensor], Neighbors | None]:
    """The scores of finite samples by name, (n,) each, and their nearest training samples.

    Args:
        model: The network and its noise levels.
        posterior: The posterior over its parameters.
        training: The training data; None to compute the influence alone.
        seed: Random seed for the noise that the influence adds, the same for all samples and the reference.
        x: The samples, (n, *shape).
        cond: Their conditions.
        batch_size: The batch size, or "auto" to choose it by memory.
        memory: Bytes that a chosen batch may use.
    """
    renoisings = make_renoisings(SCORES[:1], model.denoiser, posterior, model.schedule, seed)
    finished = FinishedScores(renoisings, cond)
    influence = score_in_batches(
        SCORES[0], lambda part, rows: finished(part, rows)[SCORES[0]], model.denoiser.wide(), x, batch_size,
        memory, learned=model.learned, work=(SCORES[0], x.shape[1:], posterior.size, tuple(sorted(cond))),
    )  # fmt: skip
    scores = {SCORES[0]: influence.cpu()}
    if training is None:
        return scores, None
    near = training.find(x)
    return {**scores, SCORES[1]: near.score}, near


def judge(
    result: Result,
    reference: Reference,
    training: TrainingData | None,
    centers: Tensor | None,
    compute: Any,
    cond: Cond,
) -> Result:
    """The same result with scores, verdict and regions; lost samples are not scored.

    Args:
        result: The samples.
        reference: The scores of real data.
        training: The training data; None if it is not known.
        centers: The centers of the regions of the data, (k, d); None if they are not known.
        compute: Computes the scores of finite samples and their neighbors from samples and conditions.
        cond: The conditions of the samples.
    """
    finite = ~result.lost.cpu()
    if finite.any():
        rows = finite.nonzero().flatten()
        found, near = compute(result.samples[rows.to(result.samples.device)], take_rows(cond, rows))
        scores = {name: _spread(values, finite, torch.nan) for name, values in found.items()}
    else:
        warn(f"all {len(result)} samples have NaN or infinity: none of them is scored.")
        names, near = SCORES if training is not None else SCORES[:1], None
        scores = {name: torch.full((len(result),), torch.nan) for name in names}
    copies = nearest = None
    if near is not None and training is not None:
        copies = _spread(near.distances[:, 0] < training.copy_distance, finite, fill=False)
        nearest = _spread(training.rows[near.indices[:, 0]], finite, fill=-1)
    return replace(
        result,
        # a score that was also requested for the trajectory is that of the verdict
        scores=scores | {name: own for name, own in result.scores.items() if name not in scores},
        verdict=decide(reference, scores, copies, nearest),
        reference=reference,
        regions=None if centers is None else assign_regions(result.samples, centers),
    )


def _spread(values: Tensor, where: Tensor, fill: float) -> Tensor:
    """Values of the rows `where`, (n,), with `fill` in the other rows."""
    out = torch.full((len(where),), fill, dtype=values.dtype)
    out[where] = values
    return out
