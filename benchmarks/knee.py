"""How many rows, training samples and reference samples the verdict needs, by its AUROC.

Every figure is `Scorer.score` of a scorer of `flare.fit`, on samples of two shipped models, with one pair of
noises per level, as for large networks. One size is varied, the others keep the defaults of large networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from statistics import mean
from unittest.mock import patch

import torch
from torch import Tensor

import flare
from experiments import realdata
from experiments.judge import Judge
from experiments.truth import Truth
from flare.bench import datasets, metrics
from flare.posteriors import curvature
from flare.scorer import fit, witnesses
from tools.document import table

from .harness import command

SIZES = {
    "training pairs": (125, 1000, 4000),
    "rows per parameter": (1, 8, 16),
    "training samples": (125, 1000, 5000),
    "reference": (50, 400, 1000),
}
SEEDS = (0,)
SAMPLES = 500
WITNESS = "epistemic_distance"
_Bad = Callable[[Tensor], Tensor]


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    rows = []
    for name, model, held_out, bad in _cases():
        n = 100 if quick else SAMPLES
        x = flare.sample(model.denoiser, model.steps(), n=n, shape=model.shape, seed=7).samples
        labels = bad(x)
        for what, sizes in SIZES.items():
            limit = {"training samples": len(model.data), "reference": len(held_out)}.get(what, max(sizes))
            for size in sorted({min(size, limit) for size in sizes[: 1 if quick else None]}):
                found = _auroc(model, held_out, x, labels, {what: size})
                rows.append([name, what, f"{size:,}", *(f"{value:.3f}" for value in found)])
                print(rows[-1], flush=True)
    head = ("set", "what is varied", "size", "verdict, AUROC", "epistemic distance alone, AUROC")
    return (
        "## What the verdict needs\n\nThe AUROC of the verdict as one size of the fit is varied. The others "
        "have the defaults of expensive networks: 1,000 pairs, 8 rows per parameter, 1,000 training samples "
        f"as features, and a reference of 400. {SAMPLES} samples, one seed.\n\n{table(head, rows)}"
    )


def _auroc(
    model: flare.Model, held_out: Tensor, x: Tensor, bad: Tensor, sizes: dict[str, int]
) -> tuple[float, float]:
    """The mean AUROC of the verdict and of the epistemic distance over `SEEDS`."""
    pairs, count = sizes.get("training pairs", 1000), sizes.get("training samples", 1000)
    real = held_out[: sizes.get("reference", 400)]
    found = []
    with (
        warnings.catch_warnings(),
        patch.object(curvature, "ROWS_PER_PARAMETER", sizes.get("rows per parameter", 8)),
        patch.object(witnesses, "MOST_PAIRS", 1),
        patch.object(witnesses, "ENCODED", count),
    ):
        warnings.simplefilter("ignore")
        for seed in SEEDS:
            scorer = fit.fit(model, model.data, held_out=real, pairs=pairs, check=False, seed=seed)
            # a size that does not reach the fit would show a plateau that is none
            used = (scorer.about["pairs"], len(scorer.training.spaces[WITNESS]), len(scorer.reference))
            assert used == (pairs, count, len(real)), used
            result = scorer.score(x)
            found.append([metrics.auroc(each, bad) for each in (result.verdict.z, result.scores[WITNESS])])
    return tuple(mean(each) for each in zip(*found, strict=True))  # type: ignore[return-value]


def _cases() -> Iterator[tuple[str, flare.Model, Tensor, _Bad]]:
    """A name, a model, real data that it has not seen, and a judge of its samples."""
    digits = flare.bench.load("digits")
    yield "digits", digits, *_judge_digits(digits.data)
    chirp, real = flare.bench.load("chirp"), datasets.make("chirp", 4000, seed=99)
    truth = Truth("chirp", chirp.data, real)
    yield "chirp", chirp, real, lambda x: truth.judge(x).bad


def _judge_digits(known: Tensor) -> tuple[Tensor, _Bad]:
    """The digits that are not in the training data, and a judge that was trained on those that are."""
    found = realdata.load("digits")
    x, labels = torch.cat([found.train, found.test]), torch.cat([found.labels, found.test_labels])
    seen = torch.cdist(x.flatten(1), known.flatten(1)).min(1).values < 1e-4
    judge = Judge.of(realdata.Real(x[seen], labels[seen], x[~seen], labels[~seen], found.classes))
    return x[~seen], judge.bad


if __name__ == "__main__":
    command("knee", __doc__, section)
