"""The entries of the leaderboard: FLARE's scores and published ones as functions of a task.

An entry takes (model, samples, data, held_out, cond), and `start` if it needs the trajectory. Scores that
compare with real data are fitted to the held-out data; distances are measured to at most `DATA` training
samples.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.conditions import take_rows
from ..core.validation import one_of
from ..diffusion.noising import Pairs, Weighting
from ..model import Model
from ..posteriors import Posterior, dense
from ..posteriors.subsets import random
from ..sampling.existing import score as score_existing
from ..scorer.fit import fit
from ..scorer.scorer import Scorer
from ..scores import SCORES
from .baselines import BASELINES
from .contest import Score
from .tasks import Conditions

DATA = 2_000  # training samples that distances are measured to
PAIRS, UNCERTAIN, PROBES = 2_000, 1_000, 2  # of posteriors other than the verdict's
BATCH = 100
WEIGHTING: Weighting = "min_snr"  # of the loss that all shipped models were trained with
_Chosen = tuple[str, dict[str, Any]]  # a baseline and its options
_Fitted = TypeVar("_Fitted")
_last: list[Any] = []  # the last fit and what it was made from: `run` calls a score twice per task


def _fit_once(fit: Callable[[], _Fitted], *made_from: Any) -> _Fitted:
    """`fit()`, which is kept until a fit from other objects is requested."""
    if not _last or len(_last[0]) != len(made_from) or any(map(operator.is_not, _last[0], made_from)):
        _last[:] = made_from, fit()
    kept: _Fitted = _last[1]
    return kept


def verdict(model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions) -> Tensor:
    """The verdict of `flare.fit` with its defaults."""
    made_from = model, data, held_out, cond.data, cond.held_out
    scorer = _fit_once(partial(fit_scorer, model, data, held_out, cond), "verdict", *made_from)
    found = scorer.score(samples, cond.samples or None).verdict
    assert found is not None
    return found.z


def fit_scorer(
    model: Model, data: Tensor, held_out: Tensor, cond: Conditions, seed: int = 0, **options: Any
) -> Scorer:
    """The scorer of the entry `verdict`: the defaults of `flare.fit`, except for the weights of the loss.

    >>> model = flare.bench.load("grid")
    >>> none = flare.bench.Conditions({}, {}, {})
    >>> new, old = model.data[:100], model.data[100:600]
    >>> scorer = flare.bench.fit_scorer(model, old, new, none, pairs=100)
    >>> len(scorer.reference)
    100
    """
    return fit(
        model, data, held_out=held_out, cond=cond.data or None, held_out_cond=cond.held_out or None,
        weighting=WEIGHTING, check=False, progress=False, seed=seed, **options,
    )  # fmt: skip


def _score(
    name: str, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions
) -> Tensor:
    """A score of `flare.score`, with a posterior if it needs one."""

    def fit_posterior() -> Posterior:
        subset = random(model.denoiser, count=min(UNCERTAIN, model.denoiser.parameter_count), seed=0)
        return dense(model.denoiser, subset, _make_pairs(model, data, cond), probes=PROBES)

    options: dict[str, Any] = {}
    if SCORES[name].needs_data:
        few = _choose_rows(len(data), len(data) if name == "neighbors" else DATA)
        options = {"data": data[few], "data_cond": take_rows(dict(cond.data), few) or None}
    posterior = None
    if SCORES[name].needs_posterior:
        posterior = _fit_once(fit_posterior, "posterior", model, data, cond.data)
    return score_existing(
        model.denoiser, posterior, model.schedule, samples, score=name, cond=dict(cond.samples) or None,
        batch_size=BATCH, **options,
    )  # fmt: skip


def _detect(
    baseline: _Chosen, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions
) -> Tensor:
    """A detector, fitted to held-out data if it compares with real data."""
    name, options = baseline

    def fit_detector() -> Any:
        entry = BASELINES[name]
        if not entry.calls_model:  # these are about the training data
            return entry.run(**options).fit(data[_choose_rows(len(data), 2 * DATA)])
        clip = {"clip": model.clip} if "clip" in entry.options else {}
        detector = entry.run(model.denoiser, model.schedule, **clip, **options)
        if entry.needs == "real data":
            detector.fit(held_out, dict(cond.held_out), batch_size=BATCH)
        return detector

    detector = _fit_once(fit_detector, baseline, model, data, held_out, cond.held_out)
    return detector.score(samples, dict(cond.samples), batch_size=BATCH)


def _follow(
    baseline: _Chosen, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions,
    start: Tensor,
) -> Tensor:  # fmt: skip
    """A baseline that follows the trajectory of each sample."""
    name, options = baseline
    entry = BASELINES[name]

    def fit_posterior() -> Posterior:
        assert entry.fit is not None
        return entry.fit(model.denoiser, _make_pairs(model, data, cond))

    fitted = [_fit_once(fit_posterior, baseline, model, data, cond.data)] if entry.fit else []
    return entry.run(
        model.denoiser, model.steps(), *fitted, start=start, cond=dict(cond.samples), batch_size=BATCH,
        **options,
    ).score  # fmt: skip


def _choose_rows(n: int, count: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count]


def _make_pairs(model: Model, data: Tensor, cond: Conditions) -> Pairs:
    return model.pairs(data, PAIRS, weighting=WEIGHTING, cond=cond.data or None, batch_size=BATCH)


def make_entry(name: str, **options: Any) -> Score:
    """A published baseline as a score, with options other than those of the leaderboard.

    >>> entry = flare.bench.make_entry("diffpath", dimensions=1)
    >>> nothing = flare.bench.Conditions({}, {}, {})
    >>> entry(flare.Model(net, schedule), data[:20], data[20:300], data[300:400], nothing).shape
    torch.Size([20])

    Args:
        name: The name of the baseline; not one that needs other trained models, or moves the samples.
        **options: Its options.
    """
    needs = BASELINES[one_of("baseline", name, _AS_SCORES)].needs
    how = _detect if needs in ("samples", "real data") else _follow
    return partial(how, (name, {**OPTIONS.get(name, {}), **options}))


#: options other than the defaults
OPTIONS: dict[str, dict[str, Any]] = {
    "ddpm_ood": {"calls": 5}, "last_iterates": {"last": 10}, "aleatoric": {"draws": 5, "last": 10}
}  # fmt: skip
_AS_SCORES = tuple(
    name
    for name, each in BASELINES.items()
    if each.needs != "models" and name != "bayesdiff"  # which moves the samples
)
#: every entry by name
ENTRIES: dict[str, Score] = {
    "verdict": verdict,
    **{name: partial(_score, name) for name, each in SCORES.items() if each.of_existing},
    **{name: make_entry(name) for name in _AS_SCORES},
}
