"""The jobs of the study of choice: draw, fit, judge, score. Which score wins is read off their results.

Samples of seeds 0 to 4 choose among the candidates, those of seeds 5 to 9 report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare.bench import baselines, metrics
from flare.scores import Renoising

from . import candidates, realdata
from .candidates import CONTRAST, NEIGHBORS, PROFILES
from .gradients import FEW, LEVELS, REPEATS, Joined, fit_posteriors, level_gradients, level_weights
from .judge import Panel, blends, feature_map
from .lab import Found, Job, calibrate
from .subjects import (
    IMAGES,
    MEMBERS,
    REAL,
    STUDIES,
    SYNTHETIC,
    TWICE,
    Subject,
    disapproves,
    draw_job,
    judge_of,
    load,
    train_jobs,
    truth_of,
)  # fmt: skip

CHOOSING, REPORTING = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
SECOND = (5,)  # reporting seeds of the second model
JUDGED_TWICE = ("digits", "digits-early", "mnist")
DIRECTIONS = 4  # of the rules
BALLS = 4_000  # training samples of the baselines that compare all of them with each other
BATCH = 20  # samples whose gradients are held at once


@dataclass(frozen=True)
class Size:
    """How large a study is.

    Attributes:
        choosing: samples per choosing seed.
        reporting: samples per reporting seed.
        walk: network calls per sample; None for one per level.
        wide: seeds that are scored at all 13 levels.
        rivals: samples that baselines score, by seed.
        costly: samples that the expensive baselines score, by seed.
        m: uncertain coordinates.
        pairs: training pairs of the fit.
        probes: rows of the Jacobian per pair.
        reference: held-out samples that scores are compared with.
    """

    choosing: int = 400
    reporting: int = 400
    walk: int | None = None
    wide: tuple[int, ...] = (*CHOOSING, *REPORTING)
    rivals: tuple[tuple[int, int], ...] = ((5, 400),)
    costly: tuple[tuple[int, int], ...] = ((5, 400),)
    m: int = 1_000
    pairs: int = 2_000
    probes: int = 2
    reference: int = 250


_SMALL_IMAGES = Size(200, 400, 25, (0, 1, 5), ((5, 400),), ((5, 100),), pairs=2_000)
_LARGE_IMAGES = Size(100, 400, 25, (0, 5), ((5, 200),), ((5, 100),), pairs=1_500, reference=150)
FULL = {
    "digits": _SMALL_IMAGES,
    "digits-early": _SMALL_IMAGES,
    "mnist": _LARGE_IMAGES,
    "mnist-70k": _SMALL_IMAGES,
    "shapes": _LARGE_IMAGES,
    "shapes-trained": replace(_LARGE_IMAGES, walk=50),  # with 25, 39% of its samples are bad, not 30%
    "air": _SMALL_IMAGES,
    **dict.fromkeys(("power", "tumors", "arcs", "arcs-early"), Size(walk=50)),
    **dict.fromkeys(SYNTHETIC, Size()),
}
QUICK = {
    study: Size(
        16, 16, 4 if study in REAL else 20, (0, 5), ((5, 16),), ((5, 16),), m=20, pairs=40, reference=30
    )
    for study in STUDIES
}


def size_of(study: str, quick: bool) -> Size:
    """How large a study is."""
    return (QUICK if quick else FULL)[study]


def draw(study: str, member: int, seed: int, n: int, quick: bool) -> Job:
    """The job that draws the samples of a seed."""
    config = {"study": study, "member": member, "seed": seed, "n": n}
    config |= {"walk": size_of(study, quick).walk, "quick": quick}
    return Job(f"draw-{study}-{member}-{seed}", draw_job, config)


def runs_of(study: str, quick: bool) -> list[tuple[int, int, int]]:
    """The runs of a study, (member, seed, n): choosing seeds, reporting seeds, and the second model's."""
    size, few = size_of(study, quick), 1 if quick else 5
    runs = [(0, seed, size.choosing) for seed in CHOOSING[:few]]
    runs += [(0, seed, size.reporting) for seed in REPORTING[:few]]
    return runs + ([(MEMBERS[0], seed, size.reporting) for seed in SECOND[:few]] if study in TWICE else [])


def draws(study: str, quick: bool) -> list[Job]:
    """All jobs that draw the samples of a study."""
    return [draw(study, *run, quick) for run in runs_of(study, quick)]


def subject_of(study: str, member: int, quick: bool) -> Subject:
    """The subject of a study, with a reference of the size of the study."""
    size = size_of(study, quick)
    subject = load(study, member, quick, size.walk)
    few = slice(0, size.reference)
    cond = {key: value[few] for key, value in subject.reference_cond.items()}
    return replace(subject, reference=subject.reference[few], reference_cond=cond)


def fit(study: str, member: int, quick: bool) -> dict[str, Any]:
    """The posteriors of a model by kind, from disk after the first time."""
    size = size_of(study, quick)
    identity = {"study": study, "member": member, "quick": quick}
    return fit_posteriors(load(study, member, quick, size.walk), size.m, size.pairs, size.probes, identity)


def fit_job(study: str, member: int, quick: bool, m: int, pairs: int, probes: int) -> Found:
    """Fit the posteriors of a model for later jobs."""
    fitted = fit(study, member, quick)
    tuned = {
        kind: calibrate(posterior, subject_of(study, member, quick).denoiser)
        for kind, posterior in fitted.items()
    }
    return {
        "sizes": {kind: posterior.size for kind, posterior in fitted.items()},
        "calibrated": {kind: [p.scale, p.prior_precision] for kind, p in tuned.items()},
        "parameters": load(study, member, quick, size_of(study, quick).walk).denoiser.parameter_count,
    }


def score_all(
    study: str, member: int, quick: bool, x: Tensor, cond: Mapping[str, Tensor], wide: bool
) -> Found:
    """Every single candidate of finished samples but those of features, as `score.NAME`, (n,) each."""
    subject = subject_of(study, member, quick)
    fitted = fit(study, member, quick)
    posteriors = candidates.prepare(fitted, subject.denoiser)
    joined = Joined({kind: posterior.subset for kind, posterior in fitted.items()})
    at = Renoising(
        subject.denoiser.wide(), [subject.schedule.at_fraction(level) for level in LEVELS], REPEATS, seed=0
    )
    levels = LEVELS if wide else FEW
    chosen = [LEVELS.index(level) for level in levels]
    weights = level_weights(at, x)[chosen]
    parts: dict[str, list[Tensor]] = {}
    for first in range(0, len(x), BATCH):
        rows = slice(first, first + BATCH)
        own = {key: value[rows] for key, value in cond.items()}
        found, errors = level_gradients(at, joined, x[rows], own, chosen)
        scores = candidates.influences(joined.split(found), weights, levels, posteriors)
        for name, wanted in PROFILES.items():
            if set(wanted) <= set(levels):
                scores[name] = errors[:, [levels.index(level) for level in wanted]].log().mean(1)
        for name, value in scores.items():
            parts.setdefault(name, []).append(value.double())
    out = {name: torch.cat(values) for name, values in parts.items()}
    out[NEIGHBORS] = flare.scores.neighbors(x, subject.train).score
    if cond:
        out[CONTRAST] = flare.score(
            subject.denoiser, None, subject.schedule, x, score="error_profile", levels=LEVELS, repeats=1,
            cond=cond, unconditional=subject.cond(len(x), null=True), batch_size=100,
        )  # fmt: skip
    return {f"score.{name}": value for name, value in out.items()}


def score_job(
    study: str, member: int, seed: int, n: int, wide: bool, quick: bool, size: Mapping[str, Any]
) -> Found:
    """The single candidates on the samples of one seed."""
    x = draw(study, member, seed, n, quick).found()["samples"]
    return score_all(study, member, quick, x, subject_of(study, member, quick).cond(n), wide)


def reference_job(study: str, member: int, quick: bool, size: Mapping[str, Any]) -> Found:
    """The same on held-out data, at all levels."""
    subject = subject_of(study, member, quick)
    return score_all(study, member, quick, subject.reference, subject.reference_cond, wide=True)


def judge_job(study: str, runs: list[list[int]], quick: bool) -> Found:
    """What is bad and of which mode, for all runs of a study; and distances in a feature space."""
    truth, out = truth_of(study), {}
    panel = Panel.of(realdata.load(REAL[study][0])) if study in JUDGED_TWICE else None
    features = feature_map(realdata.load(REAL[study][0])) if study in IMAGES else None
    for member, seed, n in runs:
        x, run = draw(study, member, seed, n, quick).found()["samples"], f"{member}.{seed}"
        subject = subject_of(study, member, quick)
        cond = subject.cond(n)
        out[f"bad.{run}"] = truth.bad(x, cond)
        if truth.mode is not None:
            out[f"mode.{run}"] = truth.mode(x)
        if panel is not None:
            out[f"panel.{run}"] = disapproves(panel.bad(x), panel.look(x)[2], cond)
        if features is not None:
            out[f"features.{run}"] = flare.scores.neighbors(x, subject.train, features=features).score
    if features is not None:
        subject = subject_of(study, 0, quick)
        out["features.reference"] = flare.scores.neighbors(
            subject.reference, subject.train, features=features
        ).score
    return {"panel_accuracy": panel.accuracy if panel else 0.0, **out}


def reliability_job(name: str) -> Found:
    """How far the judge of a data set can be trusted."""
    real, judge = realdata.load(name), judge_of(name)
    return {
        "train": len(real.train),
        "test": len(real.test),
        "accuracy": judge.accuracy,
        "bad": metrics.rate(judge.bad(real.test)),
        "blends": metrics.rate(judge.bad(blends(real))),
    }


def rivals_job(study: str, seed: int, n: int, quick: bool, size: Mapping[str, Any]) -> Found:
    """Baselines that take at most about as long as sampling."""
    subject, x, cond = _drawn(study, seed, n, quick)
    denoiser, schedule = subject.denoiser, subject.schedule

    def compare(detector: baselines.Detector) -> Tensor:
        return _compare(subject, detector, x, cond, 100)

    options = {"n": n, "shape": x.shape[1:], "seed": seed, "cond": cond, "batch_size": 100}
    free = baselines.last_iterates(denoiser, subject.steps, last=(10,), **options)
    torch.testing.assert_close(free.samples, x, rtol=1e-3, atol=1e-3)
    out = {
        "plain residual": torch.stack(
            [baselines.Residual(denoiser, schedule, level=level).score(x, cond) for level in (0.05, 0.1, 0.2)]
        ).mean(0),
        "denoising error": baselines.DenoisingError(denoiser, schedule).score(x, cond),
        "last 10 iterates": free.score,
        "MSMA": compare(baselines.MSMA(denoiser, schedule)),
        "DiffPath, 1-D": compare(baselines.DiffPath(denoiser, schedule, dimensions=1)),
        "DiffPath, 6-D": compare(baselines.DiffPath(denoiser, schedule, dimensions=6)),
        "FLIPD": baselines.FLIPD(denoiser.by(subject.derivative), schedule).score(x, cond, batch_size=100),
        "realism": baselines.Realism().fit(subject.some_train(BALLS)).score(x),
        "density": baselines.Density().fit(subject.some_train(BALLS)).score(x),
    }
    if study in TWICE:
        members = [load(study, member, quick, size["walk"]).denoiser for member in MEMBERS]
        out["ensemble"] = baselines.ensemble([denoiser, *members], subject.steps, **options).score
    return {f"score.{name}": value for name, value in out.items()}


def costly_job(study: str, seed: int, n: int, quick: bool, size: Mapping[str, Any]) -> Found:
    """Rules and baselines that take several times as long as sampling."""
    subject, x, cond = _drawn(study, seed, n, quick)
    denoiser, schedule = subject.denoiser, subject.schedule
    printed = fit(study, 0, quick)["random"]
    options = {"n": n, "shape": x.shape[1:], "seed": seed, "cond": cond, "batch_size": 50}
    rule = {"directions": DIRECTIONS, "derivative": subject.derivative, **options}
    calibrated = calibrate(printed, denoiser)
    tangent = flare.sample(denoiser, subject.steps, calibrated, score=("trace", "expected_residual"), **rule)
    released = flare.sample(denoiser, subject.steps, printed, rule="released", score="trace", **rule)
    clip = subject.steps.transitions[0].clip
    aleatoric = baselines.aleatoric(denoiser, subject.steps, draws=5, last=(10,), **options)
    out = {
        "expected_residual": tangent.scores["expected_residual"],
        "tangent trace": tangent.scores["trace"],
        "released weighting": released.score,
        "DDPM-OOD": _compare(subject, baselines.DDPMOOD(denoiser, schedule, clip=clip), x, cond, 50),
        "aleatoric": aleatoric.score,
        "gradient norms by layer": _compare(
            subject, baselines.GradientNorms(denoiser, schedule), x, cond, 50
        ),
    }
    return {"variance": tangent.variance, **{f"score.{name}": value for name, value in out.items()}}


def _compare(
    subject: Subject, detector: baselines.Detector, x: Tensor, cond: Mapping[str, Tensor], batch_size: int
) -> Tensor:
    """The scores of a detector that compares with the held-out data of a subject, (n,)."""
    fitted = detector.fit(subject.reference, subject.reference_cond, batch_size=batch_size)
    return fitted.score(x, cond, batch_size=batch_size)


def _drawn(study: str, seed: int, n: int, quick: bool) -> tuple[Subject, Tensor, dict[str, Tensor]]:
    """A subject, the first n samples of a reporting seed, and their conditions."""
    subject = subject_of(study, 0, quick)
    x = draw(study, 0, seed, size_of(study, quick).reporting, quick).found()["samples"][:n]
    return subject, x, subject.cond(n)


def jobs(quick: bool) -> list[Job]:
    """All jobs of the study, in the order of what the page needs most."""
    out = []
    for study in STUDIES:
        size, runs = size_of(study, quick), runs_of(study, quick)
        how = asdict(size)
        out += train_jobs(study, quick)
        out += draws(study, quick)
        members = sorted({member for member, _, _ in runs})
        fit_options = {key: how[key] for key in ("m", "pairs", "probes")}
        own = {"study": study, "quick": quick}
        scored = {key: how[key] for key in ("walk", "m", "pairs", "probes", "reference")}
        out += [Job(f"choice-fit-{study}-{k}", fit_job, {**own, "member": k, **fit_options}) for k in members]
        out += [
            Job(
                f"choice-{study}-{member}-{seed}", score_job,
                {**own, "member": member, "seed": seed, "n": n, "wide": seed in size.wide and not member,
                 "size": scored}, stage=2,
            )
            for member, seed, n in runs
        ]  # fmt: skip
        out += [
            Job(f"choice-real-{study}-{k}", reference_job, {**own, "member": k, "size": scored}, stage=2)
            for k in members
        ]
        out.append(
            Job(f"choice-judge-{study}", judge_job, {**own, "runs": [list(run) for run in runs]}, stage=2)
        )
        for label, run, which in (("rivals", rivals_job, size.rivals), ("costly", costly_job, size.costly)):
            out += [
                Job(
                    f"choice-{label}-{study}-{seed}", run,
                    {**own, "seed": seed, "n": n, "size": scored}, stage=3,
                )
                for seed, n in which
            ]  # fmt: skip
    return out + [
        Job(f"judge-{name}", reliability_job, {"name": name}) for name in ("digits", "mnist", "air", "power")
    ]
