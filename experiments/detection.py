"""The jobs of the study of the verdict: samples, who is right about them, and what baselines say.

Samples of the choosing seeds choose among the candidates, those of the reporting seeds report. The scores of
FLARE are those of `verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare.bench import baselines, make_entry, metrics

from . import realdata
from .judge import Panel, blends
from .lab import Found, Job, calibrate
from .methods import PRINTED
from .subjects import (
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
    truth_of,
)  # fmt: skip

CHOOSING, REPORTING = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
SECOND = (5,)  # reporting seeds of the second model
SLOW = ("mnist", "mnist-70k", "shapes", "shapes-trained")  # a fit takes minutes: fewer seeds
SLOW_CHOOSING, SLOW_REPORTING = CHOOSING[:1], REPORTING[:2]
QUICK_STUDIES = ("power", "arcs-early", "grid", "lattice")
JUDGED = ("digits", "mnist", "mnist-70k", "air", "power")  # data sets with a learned judge
JUDGED_TWICE = ("digits", "digits-early", "mnist")
DIRECTIONS = 4  # of the rules


@dataclass(frozen=True)
class Size:
    """How large a study is.

    Attributes:
        choosing: samples per choosing seed.
        reporting: samples per reporting seed.
        walk: network calls per sample; None for one per level.
        rivals: samples that baselines score, by seed.
        costly: samples that the expensive baselines score, by seed.
        m: uncertain parameters of the expensive baselines.
        pairs: training pairs of their fit.
        probes: rows of the Jacobian per pair.
        reference: held-out samples that baselines are compared with.
    """

    choosing: int = 400
    reporting: int = 400
    walk: int | None = None
    rivals: tuple[tuple[int, int], ...] = ((5, 400),)
    costly: tuple[tuple[int, int], ...] = ((5, 400),)
    m: int = 1_000
    pairs: int = 2_000
    probes: int = 2
    reference: int = 250


_SMALL_IMAGES = Size(200, 400, 25, costly=((5, 100),))
_LARGE_IMAGES = Size(100, 400, 25, ((5, 200),), ((5, 100),), pairs=1_500, reference=150)
FULL = {
    "digits": _SMALL_IMAGES,
    "digits-early": _SMALL_IMAGES,
    "mnist": _LARGE_IMAGES,
    "mnist-70k": replace(_SMALL_IMAGES, costly=()),
    "shapes": _LARGE_IMAGES,
    # with 25 steps, 39% of its samples are bad, not 30%
    "shapes-trained": replace(_LARGE_IMAGES, walk=50, costly=()),
    "air": _SMALL_IMAGES,
    **dict.fromkeys(("power", "tumors", "arcs", "arcs-early"), Size(walk=50)),
    **dict.fromkeys(SYNTHETIC, Size()),
}
QUICK = {
    study: Size(16, 16, 4 if study in REAL else 20, ((5, 16),), ((5, 16),), m=20, pairs=40, reference=30)
    for study in STUDIES
}


def studies_of(quick: bool) -> tuple[str, ...]:
    """The studies of a run: a few for a quick one."""
    return QUICK_STUDIES if quick else STUDIES


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
    choosing, reporting = (SLOW_CHOOSING, SLOW_REPORTING) if study in SLOW else (CHOOSING, REPORTING)
    runs = [(0, seed, size.choosing) for seed in choosing[:few]]
    runs += [(0, seed, size.reporting) for seed in reporting[:few]]
    return runs + ([(MEMBERS[0], seed, size.reporting) for seed in SECOND] if study in TWICE else [])


def subject_of(study: str, quick: bool) -> Subject:
    """The subject of a study, with the reference of the baselines."""
    size = size_of(study, quick)
    subject = load(study, 0, quick, size.walk)
    few = slice(0, size.reference)
    cond = {key: value[few] for key, value in subject.reference_cond.items()}
    return replace(subject, reference=subject.reference[few], reference_cond=cond)


def judge_job(study: str, runs: list[list[int]], quick: bool) -> Found:
    """What is bad and of which mode, for all runs of a study."""
    truth, out = truth_of(study), {}
    panel = Panel.of(realdata.load(REAL[study][0])) if study in JUDGED_TWICE else None
    for member, seed, n in runs:
        x, run = draw(study, member, seed, n, quick).found()["samples"], f"{member}.{seed}"
        cond = load(study, member, quick, size_of(study, quick).walk).cond(n)
        out[f"bad.{run}"] = truth.bad(x, cond)
        if truth.mode is not None:
            out[f"mode.{run}"] = truth.mode(x)
        if panel is not None:
            out[f"panel.{run}"] = disapproves(panel.bad(x), panel.look(x)[2], cond)
    return {"panel_accuracy": panel.accuracy if panel else 0.0, **out}


def judge(study: str, quick: bool) -> Job:
    """The job that judges all runs of a study."""
    runs = [list(run) for run in runs_of(study, quick)]
    return Job(f"choice-judge-{study}", judge_job, {"study": study, "quick": quick, "runs": runs}, stage=2)


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


RESIDUAL_LEVELS = (0.05, 0.1, 0.2)
#: label -> baseline and options: those that take at most about as long as sampling
CHEAP: dict[str, tuple[str, dict[str, Any]]] = {
    "denoising error": ("denoising_error", {}),
    "MSMA": ("msma", {}),
    "DiffPath, 1-D": ("diffpath", {"dimensions": 1}),
    "DiffPath, 6-D": ("diffpath", {"dimensions": 6}),
    "FLIPD": ("flipd", {}),
    "realism": ("realism", {}),
    "density": ("density", {}),
}
#: those that take several times as long
EXPENSIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "DDPM-OOD": ("ddpm_ood", {"calls": 10}),
    "gradient norms by layer": ("gradient_norms", {}),
}


def rivals_job(study: str, seed: int, n: int, quick: bool, size: Mapping[str, Any]) -> Found:
    """Baselines that take at most about as long as sampling."""
    subject, x = _drawn(study, seed, n, quick)
    start = subject.start(n, seed)
    out = {label: subject.score(make_entry(name, **own), x) for label, (name, own) in CHEAP.items()}
    out["last 10 iterates"] = subject.score(make_entry("last_iterates", seed=seed), x, start=start)
    residuals = [subject.score(make_entry("residual", level=level), x) for level in RESIDUAL_LEVELS]
    out["plain residual"] = torch.stack(residuals).mean(0)
    if study in TWICE:
        members = [load(study, member, quick, size["walk"]).denoiser for member in MEMBERS]
        out["ensemble"] = baselines.ensemble(
            [subject.denoiser, *members], subject.steps, start=start, seed=seed,
            cond=subject.cond(n), batch_size=100,
        ).score  # fmt: skip
    return {f"score.{name}": value for name, value in out.items()}


def costly_job(study: str, seed: int, n: int, quick: bool, size: Mapping[str, Any]) -> Found:
    """Rules and baselines that take several times as long as sampling."""
    subject, x = _drawn(study, seed, n, quick)
    denoiser = subject.denoiser
    subset = flare.subsets.random(denoiser, count=min(size["m"], denoiser.parameter_count), seed=0)
    printed = flare.posteriors.dense(
        denoiser, subset, subject.pairs(size["pairs"]), **PRINTED, probes=size["probes"]
    )
    rule = {
        "n": n, "shape": x.shape[1:], "seed": seed, "cond": subject.cond(n), "batch_size": 50,
        "directions": DIRECTIONS, "derivative": subject.derivative,
    }  # fmt: skip
    calibrated = calibrate(printed, denoiser)
    tangent = flare.sample(denoiser, subject.steps, calibrated, score=("trace", "expected_residual"), **rule)
    released = flare.sample(denoiser, subject.steps, printed, rule="released", score="trace", **rule)
    out = {
        "expected_residual": tangent.scores["expected_residual"],
        "tangent trace": tangent.scores["trace"],
        "released weighting": released.score,
        "aleatoric": subject.score(make_entry("aleatoric", seed=seed), x, start=subject.start(n, seed)),
        **{label: subject.score(make_entry(name, **own), x) for label, (name, own) in EXPENSIVE.items()},
    }
    return {f"score.{name}": value for name, value in out.items()}


def _drawn(study: str, seed: int, n: int, quick: bool) -> tuple[Subject, Tensor]:
    """A subject, and the first n samples of a reporting seed."""
    x = draw(study, 0, seed, size_of(study, quick).reporting, quick).found()["samples"][:n]
    return subject_of(study, quick), x


def rival_jobs(study: str, quick: bool) -> list[Job]:
    """The jobs of all baselines of a study; the expensive ones come last."""
    size, out = size_of(study, quick), []
    fitted = {key: getattr(size, key) for key in ("walk", "m", "pairs", "probes", "reference")}
    every = (("rivals", rivals_job, size.rivals, 3), ("costly", costly_job, size.costly, 4))
    for label, run, which, stage in every:
        for seed, n in which:
            config = {"study": study, "quick": quick, "seed": seed, "n": n, "size": fitted}
            out.append(Job(f"choice-{label}-{study}-{seed}", run, config, stage))
    return out


def reliability_jobs(quick: bool) -> list[Job]:
    """How far the learned judges can be trusted."""
    names = {REAL[study][0] for study in studies_of(quick) if study in REAL}
    return [Job(f"judge-{name}", reliability_job, {"name": name}) for name in JUDGED if name in names]
