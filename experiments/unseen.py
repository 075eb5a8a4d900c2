"""What a model of digits does not know: a class that it never saw, and nine tenths of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import flare
from flare.bench import baselines, metrics
from tools.document import table

from . import realdata, realmodels
from .candidates import FOUR
from .common import spread
from .jacobians import Push
from .lab import Found, Job, calibrate, load_or_fit
from .methods import DIRECTIONS, PRINTED
from .subjects import WEIGHTING, labelled, model_config

NAME = "digits"
CLASSES = (0, 3, 7)
SHARE = 0.1
LEVELS = (0.1, 0.3, 0.6)  # noise levels of the guidance study, as fractions of T
SCALES = (1.0, 3.0)
DERIVATIVE = "secant"


def fit_posteriors(config: Mapping[str, Any], flow: flare.Model, count: int, pairs: int) -> dict[str, Any]:
    """The dense posterior over random parameters, with the paper's s and δ and calibrated."""
    x, cond = realmodels.data(config)

    def fit() -> Any:
        subset = flare.subsets.random(flow.denoiser, count=count, seed=0)
        drawn = flow.pairs(x, pairs, seed=0, weighting=WEIGHTING, cond=cond, batch_size=100)
        return flare.posteriors.dense(flow.denoiser, subset, drawn, **PRINTED, probes=2)

    identity = {"config": dict(config), "count": count, "pairs": pairs}
    printed = load_or_fit(f"unseen-{realmodels.label(config)}", identity, fit, flow.denoiser)
    return {"printed": printed, "calibrated": calibrate(printed, flow.denoiser)}


def unseen_job(config: Mapping[str, Any], count: int, pairs: int, images: int, reference: int) -> Found:
    """Held-out images of all classes, judged without a label by a model that was trained on less.

    Args:
        config: Of the model.
        count: Uncertain parameters.
        pairs: Training pairs of the curvature.
        images: How many images are judged.
        reference: How many other held-out images they are compared with.
    """
    flow, real = realmodels.flow(config), realdata.load(NAME)
    posterior = fit_posteriors(config, flow, count, pairs)["calibrated"]
    train, _ = realmodels.data(config)
    x, others = real.test[:images], real.test[images : images + reference]
    scorer = flare.fit(
        flow, train, held_out=others, cond=_no_label(train), held_out_cond=_no_label(others),
        posterior=posterior, check=False,
    )  # fmt: skip
    result, cond = scorer.score(x, _no_label(x)), _no_label(x)
    trace = flare.score(
        flow.denoiser, posterior, flow.schedule, x, score="trace", directions=DIRECTIONS, cond=cond,
        derivative=DERIVATIVE, batch_size=50,
    )  # fmt: skip
    return {
        "labels": real.test_labels[:images],
        "score.verdict": result.verdict.z,
        **{f"score.{name}": result.scores[name] for name in scorer.reference.scores},
        "score.trace": trace,
        "score.denoising error": baselines.DenoisingError(flow.denoiser, flow.schedule).score(x, cond),
    }


def _no_label(x: Tensor) -> dict[str, Tensor]:
    return labelled(torch.zeros(len(x), dtype=torch.long), null=True)


def guidance_job(config: Mapping[str, Any], count: int, pairs: int, images: int) -> Found:
    """The variance of f_w = (1+w)·f_c − w·f_u as one network, and with branches taken as independent."""
    flow = realmodels.flow(config)
    posterior = fit_posteriors(config, flow, count, pairs)["calibrated"]
    x0 = realdata.load(NAME).test[:images]
    D = posterior.directions(16, torch.Generator().manual_seed(0))
    labels = torch.arange(len(x0)) % realmodels.NULL
    push = Push(flow.denoiser, posterior.subset, D)
    ratios = {}
    for share in LEVELS:
        level = flow.schedule.at_fraction(share)
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
        x, t = level.alpha * x0 + level.sigma * noise, torch.full((len(x0),), level.time)
        given, without = (push(x, None, t, labelled(labels, null))[1] for null in (False, True))
        for w in SCALES:
            joint = ((1 + w) * given - w * without).square().sum(0).flatten(1).sum(1)
            apart = ((1 + w) ** 2 * given.square() + w**2 * without.square()).sum(0).flatten(1).sum(1)
            ratios[f"{share:g}, {w:g}"] = float((apart / joint).median())
    return {"ratios": ratios}


def classes_of(quick: bool) -> tuple[int, ...]:
    """The classes that a model is trained without."""
    return CLASSES[:1] if quick else CLASSES


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per model; the model of all data is that of the study."""
    size = (
        {"count": 20, "pairs": 40, "images": 40} if quick else {"count": 500, "pairs": 1_500, "images": 300}
    )
    configs = {"whole": model_config(NAME, quick), "tenth": model_config(NAME, quick, share=SHARE)}
    configs |= {f"without-{k}": model_config(NAME, quick, without=k) for k in classes_of(quick)}
    return [
        *(realmodels.training(config) for config in configs.values()),
        *(
            Job(f"unseen-{k}", unseen_job, {"config": c, **size, "reference": 200}, stage=3)
            for k, c in configs.items()
        ),
        Job("guidance", guidance_job, {"config": configs["whole"], **size}, stage=2),
    ]


def section(jobs: Sequence[Job], classes: Sequence[int]) -> list[str]:
    """A class that was never seen, and a tenth of the data."""
    found = {job.name: job.found() for job in jobs if job.run is unseen_job}
    if not {"unseen-whole", "unseen-tenth", *(f"unseen-without-{k}" for k in classes)} <= set(found):
        return []
    whole, tenth = found["unseen-whole"], found["unseen-tenth"]
    order = ["score.verdict", *(f"score.{name}" for name in FOUR), "score.trace", "score.denoising error"]
    rows = []
    for key in order:
        unknown, known = (
            [metrics.auroc(one[key], one["labels"] == k) for k, one in zip(classes, models, strict=True)]
            for models in ([found[f"unseen-without-{k}"] for k in classes], [whole] * len(classes))
        )
        # the verdict compares with real data of the same model, so it has no scale of its own
        ratio = "–" if key == "score.verdict" else f"{float((tenth[key] / whole[key]).median()):.2f}"
        rows.append([key.removeprefix("score."), *(f"{a:.3f}" for a in unknown), spread(known), ratio])
    head = ["AUROC", *(f"without {k}" for k in classes), "by the model that saw it", "tenth / whole"]
    return [
        "Models of digits that never saw one class judge held-out images of all ten, with no label given: "
        "the AUROC of the unseen class against the others, compared with that of the model that saw all "
        "classes, which says how odd the class is in itself. The last column is the median over images of "
        "the score by a model of a tenth of the data, over that by the model of all data. "
        "`trace` is the paper's score.",
        table(head, rows),
    ]


def guidance(jobs: Sequence[Job]) -> list[str]:
    """What it means to take the branches of guidance as independent."""
    found = next((job.found() for job in jobs if job.run is guidance_job), None)
    if found is None:
        return []
    ratios = found["ratios"]
    return [
        "The epistemic variance of f_w = (1+w)·f_c − w·f_u with branches taken as independent, as BayesDiff "
        "does, over that of one network whose branches share their parameters: the median over held-out "
        "digits, by noise level (share of T) and w.",
        table(
            ["level", *(f"w = {w:g}" for w in SCALES)],
            [[f"{share:g}", *(f"{ratios[f'{share:g}, {w:g}']:.1f}" for w in SCALES)] for share in LEVELS],
        ),
    ]
