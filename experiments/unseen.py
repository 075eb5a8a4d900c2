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
from .common import spread
from .jacobians import Push
from .lab import ENCODED, Found, Job, calibrate, load_or_fit
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


def existing(
    config: Mapping[str, Any], flow: flare.Model, posteriors: Mapping[str, Any], x: Tensor
) -> dict[str, Tensor]:
    """Scores of existing images, without a label."""
    cond = labelled(torch.zeros(len(x), dtype=torch.long), null=True)
    options: dict[str, Any] = {
        "directions": DIRECTIONS, "cond": cond, "derivative": DERIVATIVE, "batch_size": 50
    }  # fmt: skip

    train = realmodels.data(config)[0]
    known = {
        "data": train[:ENCODED],
        "data_cond": labelled(torch.zeros(len(train[:ENCODED]), dtype=torch.long), null=True),
    }

    def score(which: str, name: str, **more: Any) -> Tensor:
        return flare.score(flow.denoiser, posteriors[which], flow.schedule, x, score=name, **options, **more)

    return {
        "score.influence": score("calibrated", "influence", **known),
        "score.neighbors": flare.scores.neighbors(x, train).score,
        "score.endpoint trace, calibrated": score("calibrated", "trace"),
        "score.endpoint trace, s = 1, δ = 1e-6": score("printed", "trace"),
        "score.expected_residual": score("calibrated", "expected_residual"),
        "score.residual": baselines.Residual(flow.denoiser, flow.schedule).score(x, cond),
        "score.denoising error": baselines.DenoisingError(flow.denoiser, flow.schedule).score(x, cond),
    }


def unseen_job(config: Mapping[str, Any], count: int, pairs: int, images: int) -> Found:
    """Held-out images of all classes, scored by a model that was trained on less."""
    flow = realmodels.flow(config)
    real = realdata.load(NAME)
    posteriors = fit_posteriors(config, flow, count, pairs)
    return {"labels": real.test_labels[:images], **existing(config, flow, posteriors, real.test[:images])}


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


def jobs(quick: bool) -> list[Job]:
    """Training, and one job per model; the model of all data is that of the study."""
    size = (
        {"count": 20, "pairs": 40, "images": 40} if quick else {"count": 500, "pairs": 1_500, "images": 300}
    )
    configs = {"whole": model_config(NAME, quick), "tenth": model_config(NAME, quick, share=SHARE)}
    configs |= {f"without-{k}": model_config(NAME, quick, without=k) for k in CLASSES}
    return [
        *(realmodels.training(config) for config in configs.values()),
        *(Job(f"unseen-{k}", unseen_job, {"config": c, **size}, stage=2) for k, c in configs.items()),
        Job("guidance", guidance_job, {"config": configs["whole"], **size}, stage=2),
    ]


def section(jobs: Sequence[Job]) -> list[str]:
    """A class that was never seen, and a tenth of the data."""
    found = {job.name: job.found() for job in jobs if job.run is unseen_job}
    scores = [key for key in found["unseen-whole"] if key.startswith("score.")]
    rows = []
    for key in scores:
        aurocs = [
            metrics.auroc(found[f"unseen-without-{k}"][key], found[f"unseen-without-{k}"]["labels"] == k)
            for k in CLASSES
        ]
        same = [
            metrics.auroc(found["unseen-whole"][key], found["unseen-whole"]["labels"] == k) for k in CLASSES
        ]
        ratio = float((found["unseen-tenth"][key] / found["unseen-whole"][key]).median())
        rows.append(
            [
                key.removeprefix("score."),
                *(f"{a:.3f}" for a in aurocs),
                spread(aurocs),
                spread(same),
                f"{ratio:.2f}",
            ]
        )
    head = [
        "score",
        *(f"without {k}" for k in CLASSES),
        "mean",
        "the same, by the model that saw it",
        "tenth / whole",
    ]
    ratios = next(job for job in jobs if job.run is guidance_job).found()["ratios"]
    return [
        "## What the model never saw",
        "Models of digits that never saw one class, asked about held-out images of all ten, with no label "
        "given: AUROC of the unseen class against the others. Beside it the same figure by the model that "
        "saw all classes: that much of it is that a class is hard, not that it is unknown. The last column "
        "is a model trained on a tenth of the data: the median over the images of its score over that of "
        "the model of all data.",
        table(head, rows),
        "## Guidance",
        "The epistemic variance of f_w = (1+w)·f_c − w·f_u, the branches taken as independent over that of "
        "one network whose branches share their parameters; the median over held-out digits, by noise level "
        "(share of T) and w. Independence, which BayesDiff assumes, overstates it by as much.",
        table(
            ["level", *(f"w = {w:g}" for w in SCALES)],
            [[f"{share:g}", *(f"{ratios[f'{share:g}, {w:g}']:.1f}" for w in SCALES)] for share in LEVELS],
        ),
    ]
