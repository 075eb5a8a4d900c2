"""The entries of the leaderboard: FLARE's scores and published ones as functions of a task.

An entry takes (model, samples, data, held_out, cond), and `start` if it needs the trajectory. Scores that
compare with real data are fitted to the held-out data; distances are measured to at most `DATA` training
samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.conditions import take_rows
from ..diffusion.noising import Pairs, Weighting
from ..model import Model
from ..posteriors import Posterior, dense
from ..posteriors.subsets import random
from ..sampling.existing import score as score_existing
from ..scorer.fit import fit
from ..scorer.scorer import Scorer
from ..scores import SCORES
from . import baselines
from .contest import Score
from .tasks import Conditions

DATA = 2_000  # training samples that distances are measured to
PAIRS, UNCERTAIN, PROBES = 2_000, 1_000, 2  # of posteriors other than the verdict's
BATCH = 100
WEIGHTING: Weighting = "min_snr"  # of the loss that all shipped models were trained with
_Fitted = TypeVar("_Fitted")
_last: list[Any] = []  # the last fit and what it was made from: `run` calls a score twice per task


def _fit_once(
    fit: Callable[..., _Fitted], name: str, model: Model, data: Tensor, held_out: Tensor, cond: Conditions
) -> _Fitted:
    """`fit(name, model, data, held_out, cond)`, which is kept until another one is requested."""
    given = (fit, name, model, data, held_out, cond.data, cond.held_out)
    if not _last or any(a is not b for a, b in zip(_last[0], given, strict=True)):
        _last[:] = given, fit(name, model, data, held_out, cond)
    kept: _Fitted = _last[1]
    return kept


def verdict(model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions) -> Tensor:
    """The verdict of `flare.fit` with its defaults."""
    scorer = _fit_once(_fit_scorer, "verdict", model, data, held_out, cond)
    found = scorer.score(samples, cond.samples or None).verdict
    assert found is not None
    return found.z


def _fit_scorer(name: str, model: Model, data: Tensor, held_out: Tensor, cond: Conditions) -> Scorer:
    return fit(
        model, data, held_out=held_out, cond=cond.data or None, held_out_cond=cond.held_out or None,
        weighting=WEIGHTING, check=False, progress=False,
    )  # fmt: skip


def _score(
    name: str, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions
) -> Tensor:
    """A score of `flare.score`, with a posterior if it needs one."""
    options: dict[str, Any] = {}
    if SCORES[name].needs_data:
        few = _choose_rows(len(data), len(data) if name == "neighbors" else DATA)
        options = {"data": data[few], "data_cond": take_rows(dict(cond.data), few) or None}
    posterior = None
    if SCORES[name].needs_posterior:
        posterior = _fit_once(_fit_posterior, name, model, data, held_out, cond)
    return score_existing(
        model.denoiser, posterior, model.schedule, samples, score=name, cond=dict(cond.samples) or None,
        batch_size=BATCH, **options,
    )  # fmt: skip


def _fit_posterior(name: str, model: Model, data: Tensor, held_out: Tensor, cond: Conditions) -> Posterior:
    subset = random(model.denoiser, count=min(UNCERTAIN, model.denoiser.parameter_count), seed=0)
    return dense(model.denoiser, subset, _make_pairs(model, data, cond), probes=PROBES)


def _detect(
    name: str, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions
) -> Tensor:
    """A detector, fitted to held-out data if it compares with real data."""
    detector = _fit_once(_fit_detector, name, model, data, held_out, cond)
    return detector.score(samples, dict(cond.samples), batch_size=BATCH)


def _fit_detector(name: str, model: Model, data: Tensor, held_out: Tensor, cond: Conditions) -> Any:
    entry, options = baselines.BASELINES[name], dict(OPTIONS.get(name, {}))
    if not entry.calls_model:  # these are about the training data
        return entry.run(**options).fit(data[_choose_rows(len(data), 2 * DATA)])
    options |= {"clip": model.clip} if "clip" in entry.options else {}
    detector = entry.run(model.denoiser.by("auto"), model.schedule, **options)
    if entry.needs == "real data":
        detector.fit(held_out, dict(cond.held_out), batch_size=BATCH)
    return detector


def _follow(
    name: str, model: Model, samples: Tensor, data: Tensor, held_out: Tensor, cond: Conditions, start: Tensor
) -> Tensor:
    """A baseline that follows the trajectory of each sample."""
    entry = baselines.BASELINES[name]
    fitted = [] if entry.fit is None else [_fit_once(_fit_last_layer, name, model, data, held_out, cond)]
    return entry.run(
        model.denoiser, model.steps(), *fitted, start=start, cond=dict(cond.samples), batch_size=BATCH,
        **OPTIONS.get(name, {}),
    ).score  # fmt: skip


def _fit_last_layer(name: str, model: Model, data: Tensor, held_out: Tensor, cond: Conditions) -> Any:
    fit_it = baselines.BASELINES[name].fit
    assert fit_it is not None
    return fit_it(model.denoiser, _make_pairs(model, data, cond))


def _choose_rows(n: int, count: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count]


def _make_pairs(model: Model, data: Tensor, cond: Conditions) -> Pairs:
    return model.pairs(data, PAIRS, weighting=WEIGHTING, cond=cond.data or None, batch_size=BATCH)


#: options other than the defaults
OPTIONS: dict[str, dict[str, Any]] = {
    "ddpm_ood": {"calls": 5}, "last_iterates": {"last": 10}, "aleatoric": {"draws": 5, "last": 10}
}  # fmt: skip
#: every entry by name; baselines that need other trained models are left out
ENTRIES: dict[str, Score] = {
    "verdict": verdict,
    **{name: partial(_score, name) for name, each in SCORES.items() if each.of_existing},
}
for _name, _entry in baselines.BASELINES.items():
    if _entry.needs in ("samples", "real data"):
        ENTRIES[_name] = partial(_detect, _name)
    elif _entry.needs in ("nothing", "posterior") and _name != "bayesdiff":  # which moves the samples
        ENTRIES[_name] = partial(_follow, _name)
