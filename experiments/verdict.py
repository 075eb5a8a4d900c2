"""The study of the verdict: every figure comes from `flare.fit` and `Scorer.score`.

A run fits a scorer to a trained model and scores samples of that model. The seed of the samples is also that
of the scorer, so the noise, the uncertain parameters and the training pairs differ between runs as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

import flare
from flare import bench

from .detection import CHOOSING, REPORTING, SLOW, draw, size_of
from .lab import Found, Job
from .subjects import Subject, load

OTHER = 1_000  # added to the seed of another scorer: other noise, and other rows if not all are kept
FRESH = 250  # held-out samples whose p-values should be uniform


def fit(subject: Subject, seed: int, **options: Any) -> flare.Scorer:
    """The scorer of a subject, as the leaderboard fits it."""
    cond = bench.Conditions({}, subject.train_cond, subject.reference_cond)
    model = flare.Model(subject.denoiser, subject.schedule)
    return bench.fit_scorer(model, subject.train, subject.reference, cond, seed, **options)


def verdict_job(
    study: str, member: int, seed: int, n: int, again: bool, influence: bool, quick: bool
) -> Found:
    """Scores, z and p-values of samples, and the scores of the reference.

    Args:
        study: The data set and model.
        member: The seed of the model's training.
        seed: Random seed of the samples and of the scorer.
        n: The number of samples.
        again: Whether to score the samples once more with other noise, and fresh real data.
        influence: Whether to compute the influence, too, which is not a part of the verdict.
        quick: Whether the study is small.
    """
    subject = load(study, member, quick, size_of(study, quick).walk)
    x, cond = draw(study, member, seed, n, quick).found()["samples"], subject.cond(n)
    scorer = fit(subject, seed, **({"subset": 20, "pairs": 40} if quick else {}))
    out = _figures(scorer, x, cond)
    out |= {"pairs": scorer.encoder.pairs, "repeatability": scorer.about["repeatability"]}
    if influence:
        out |= _influences(scorer, subject, x, cond)
    if again:
        other = fit(subject, seed + OTHER, posterior=scorer.posterior)
        out |= {f"again.{key}": value for key, value in _figures(other, x, cond).items()}
        rest = subject.rest[:FRESH]
        labels = {key: value[: len(rest)] for key, value in subject.rest_cond.items()}
        out["fresh"] = scorer.score(rest, labels or None).p_value
    return out


def _influences(scorer: flare.Scorer, subject: Subject, x: Tensor, cond: Mapping[str, Tensor]) -> Found:
    """The influence of the samples and of the reference: distances, and squared lengths as in version 0.4."""
    encoder = replace(scorer.encoder, readers={"influence": flare.scores.LossGradients})
    order = torch.randperm(len(subject.train), generator=torch.Generator().manual_seed(scorer.seed))
    few = order[: len(scorer.training.spaces["activations"])]
    labels = {key: value[few] for key, value in subject.train_cond.items()}
    points, own, real = (
        encoder.encode(*each)["influence"]
        for each in ((subject.train[few], labels), (x, cond), (subject.reference, subject.reference_cond))
    )
    space, center, out = flare.scores.Space(points), points.mean(0), {}
    for key, values in (("score", own), ("real", real)):
        out[f"{key}.influence"] = space.score(values)
        out[f"{key}.influence, norm"] = values.double().square().sum(1)
        out[f"{key}.influence, centered"] = (values - center).double().square().sum(1)
    return out


def _figures(scorer: flare.Scorer, x: Tensor, cond: Mapping[str, Tensor]) -> Found:
    result = scorer.score(x, cond or None)
    return {
        "z": result.verdict.z,
        "p_value": result.p_value,
        "regions": result.regions,
        **{f"score.{name}": result.scores[name] for name in scorer.reference.scores},
        **{f"real.{name}": value for name, value in scorer.reference.scores.items()},
    }


def noise_job(study: str, seed: int, n: int, quick: bool) -> Found:
    """The rank correlation of scores and verdicts between two noises, with everything else the same."""
    subject = load(study, 0, quick, size_of(study, quick).walk)
    x, cond = draw(study, 0, seed, n, quick).found()["samples"], subject.cond(n)
    scorer = fit(subject, seed, **({"subset": 20, "pairs": 40} if quick else {}))
    order = torch.randperm(len(subject.train), generator=torch.Generator().manual_seed(seed))
    few = order[: len(scorer.training.spaces["activations"])]
    labels = {key: value[few] for key, value in subject.train_cond.items()}
    near = scorer.score(x, cond or None).scores["neighbors"]
    found = []
    for first in (0, scorer.encoder.pairs):
        encoder = scorer.encoder.with_pairs(scorer.encoder.pairs, first)
        points, own, real = (
            encoder.encode(*each)
            for each in ((subject.train[few], labels), (x, cond), (subject.reference, subject.reference_cond))
        )
        scores, of_real = {"neighbors": near}, {"neighbors": scorer.reference.scores["neighbors"]}
        for name, values in points.items():
            scale = encoder.readers[name].scale(encoder, values)
            space = flare.scores.Space(values if scale is None else values * scale, scale)
            scores[name], of_real[name] = space.score(own[name]), space.score(real[name])
        found.append({"verdict": flare.Reference(of_real).verdict(scores).z, **scores})
    return {name: float(spearmanr(found[0][name], found[1][name]).statistic) for name in found[0]}


def noise(study: str, quick: bool) -> Job:
    """The job that compares two noises, on the samples of the first reporting seed."""
    config = {"study": study, "seed": REPORTING[0], "n": size_of(study, quick).reporting, "quick": quick}
    return Job(f"noise-{study}", noise_job, config, stage=3)


def job(study: str, member: int, seed: int, n: int, quick: bool) -> Job:
    """The run of one seed."""
    config = {"study": study, "member": member, "seed": seed, "n": n, "again": not member and seed == 5}
    config["influence"] = seed in CHOOSING or study not in SLOW  # it takes minutes on large images
    return Job(f"verdict-{study}-{member}-{seed}", verdict_job, {**config, "quick": quick}, stage=2)
