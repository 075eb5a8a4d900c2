"""What a model of digits does not know: a class that it never saw, and nine tenths of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import flare
from flare import baselines
from flare.autodiff.jvp import Push, prepare
from flare.integrations.diffusers import DiffusersModel

from . import realdata, realmodels
from .lab import Found, Job
from .methods import DIRECTIONS
from .realbench import FULL, QUICK, conditions, derivative_of, fit_posteriors, model_config

NAME = "digits"
CLASSES = (0, 3, 7)
SHARE = 0.1
LEVELS = (0.1, 0.3, 0.6)  # where guidance is looked at, as shares of T
SCALES = (1.0, 3.0)


def existing(flow: DiffusersModel, posteriors: Mapping[str, Any], x: Tensor) -> dict[str, Tensor]:
    """Scores of images that exist, with no label given."""
    cond = conditions(NAME, len(x), null=True)
    options: dict[str, Any] = {
        "directions": DIRECTIONS, "cond": cond, "derivative": derivative_of(NAME), "batch_size": 100
    }  # fmt: skip

    def score(which: str, name: str) -> Tensor:
        return flare.score(flow.denoiser, posteriors[which], flow.schedule, x, score=name, **options)

    return {
        "score.endpoint trace, calibrated": score("calibrated", "trace"),
        "score.endpoint trace, s = 1, δ = 1e-6": score("random", "trace"),
        "score.expected_residual, calibrated": score("calibrated", "expected_residual"),
        "score.residual": baselines.residual(flow.denoiser, flow.schedule, x, cond=cond),
        "score.denoising error": baselines.denoising_error(flow.denoiser, flow.schedule, x, cond=cond),
    }


def unseen_job(config: Mapping[str, Any], count: int, pairs: int, images: int) -> Found:
    """Held-out images of all classes, scored by a model that was trained on less."""
    flow = realmodels.flow(config)
    real = realdata.load(NAME)
    posteriors = fit_posteriors(config, flow, {"count": count, "pairs": pairs})
    return {"labels": real.test_labels[:images], **existing(flow, posteriors, real.test[:images])}


def guidance_job(config: Mapping[str, Any], count: int, pairs: int, images: int) -> Found:
    """The variance of f_w = (1+w)·f_c − w·f_u as one network, and with branches taken as independent."""
    flow = realmodels.flow(config)
    posterior = fit_posteriors(config, flow, {"count": count, "pairs": pairs})["calibrated"]
    x0 = realdata.load(NAME).test[:images]
    D = posterior.directions(16, torch.Generator().manual_seed(0))
    cond, time = conditions(NAME, len(x0)), flow.schedule.at_fraction(LEVELS[0]).time
    push = Push(
        prepare(flow.denoiser, posterior.subset, derivative_of(NAME), x0, time, cond), posterior.subset, D
    )
    ratios = {}
    for share in LEVELS:
        level = flow.schedule.at_fraction(share)
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
        x, t = level.alpha * x0 + level.sigma * noise, torch.full((len(x0),), level.time)
        given, without = (push(x, None, t, conditions(NAME, len(x0), null=null))[1] for null in (False, True))
        for w in SCALES:
            joint = ((1 + w) * given - w * without).square().sum(0).flatten(1).sum(1)
            apart = ((1 + w) ** 2 * given.square() + w**2 * without.square()).sum(0).flatten(1).sum(1)
            ratios[f"{share:g}, {w:g}"] = float((apart / joint).median())
    return {"ratios": ratios}


def jobs(quick: bool) -> list[Job]:
    """Training, and a job a model; the model of all data is that of the study."""
    size = {key: (QUICK if quick else FULL)[NAME][key] for key in ("count", "pairs")}
    size["images"] = 40 if quick else 500
    configs = {"whole": model_config(NAME, quick), "tenth": model_config(NAME, quick, share=SHARE)}
    configs |= {f"without-{k}": model_config(NAME, quick, without=k) for k in CLASSES}
    return [
        *(realmodels.training(config) for config in configs.values()),
        *(Job(f"unseen-{k}", unseen_job, {"config": c, **size}, stage=2) for k, c in configs.items()),
        Job("guidance", guidance_job, {"config": configs["whole"], **size}, stage=2),
    ]
