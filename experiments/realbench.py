"""Every rule, score and baseline on a model of real data: one job fits, one a seed samples and scores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flare
from flare.evaluation import metrics
from flare.integrations.diffusers import DiffusersModel

from . import methods, realdata, realmodels
from .bench import STRATA, TYPICAL
from .judge import Judge
from .lab import Found, Job
from .methods import DEFAULT, DIRECTIONS, SCORES, Baselines, Run, Scored, Subject, detection, score_with

# study -> data set, and how its model is trained: that of digits makes few bad samples, hence an early one
STUDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "digits-early": ("digits", {"steps": 500, "warmup": 100, "ema": 0.99}),
    "mnist": ("mnist", {}),
    "air": ("air", {}),
    "power": ("power", {}),
}
SEEDS = (0, 1, 2)
WEIGHTING = "min_snr"
LOGITS = "variance of a classifier's logits"
# samples a seed, network calls a sample, uncertain parameters, training pairs of the fit, samples a batch
FULL = {
    "digits": {"n": 200, "walk": 25, "count": 2_000, "pairs": 4_000, "batch": 100},
    "digits-early": {"n": 200, "walk": 25, "count": 2_000, "pairs": 4_000, "batch": 100},
    "mnist": {"n": 200, "walk": 25, "count": 2_000, "pairs": 2_000, "batch": 50},
    "air": {"n": 200, "walk": 25, "count": 2_000, "pairs": 4_000, "batch": 100},
    "power": {"n": 500, "walk": 50, "count": 2_000, "pairs": 20_000, "batch": 500},
}
QUICK = {name: {"n": 12, "walk": 4, "count": 40, "pairs": 64, "batch": 12} for name in STUDIES}
ALONE = ("mnist",)  # training takes too long for an ensemble and a hypernetwork
MEMBERS = (100, 101)  # the seeds of the ensemble, besides the model
HYPER = 200  # the seed of the hypernetwork
OURS = Run("calibrated", "tangent", {f"FLARE calibrated, {score}": score for score in SCORES})
RUNS = (
    Run("random", "tangent", {"FLARE, tangent": "trace"}),
    Run("random", "decoupled", {"FLARE, decoupled (as printed)": "trace"}),
    Run("random", "released", {"FLARE, released code": "trace"}),
    Run("random", "endpoint", {"FLARE, endpoint": "trace"}),
    Run("last", "tangent", {"LLLA, tangent": "trace"}),
)


def model_config(study: str, quick: bool, **options: Any) -> dict[str, Any]:
    """The model of a study."""
    name, training = STUDIES[study]
    return realmodels.configure(name, **training | options | ({"steps": 6, "warmup": 2} if quick else {}))


@cache
def judge_of(name: str) -> Judge:
    """The judge of a data set."""
    return Judge.of(realdata.load(name))


def derivative_of(name: str) -> str:
    """Secants where a call of the network costs something."""
    return "exact" if name == "power" else "secant"


class Largest(TorchDispatchMode):
    """Remembers the largest tensor of floating-point numbers that any operation of torch makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` and look at what it gives."""
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and value.is_floating_point():  # a checksum looks at bytes
                self.numel = max(self.numel, value.numel())
        return out


def fit_posteriors(
    config: Mapping[str, Any], flow: DiffusersModel, size: Mapping[str, int]
) -> dict[str, Any]:
    """The posteriors of a model, from disk after the first time."""
    x, cond = realmodels.data(config)
    pairs = flow.pairs(x, size["pairs"], seed=0, weighting=WEIGHTING, cond=cond, batch_size=100)
    identity = {"config": dict(config), "count": size["count"], "pairs": size["pairs"]}
    file_name = f"real-{realmodels.label(config)}-{{}}"
    return methods.fit_posteriors(file_name, identity, flow.denoiser, pairs, size["count"], len(x))


def fit_job(config: Mapping[str, Any], count: int, pairs: int) -> Found:
    """Fit the posteriors of a model, watching the memory."""
    flow = realmodels.flow(config)
    started = time.perf_counter()
    with Largest() as largest, Peak() as peak:
        posteriors = fit_posteriors(config, flow, {"count": count, "pairs": pairs})
    d, p = realdata.load(config["name"]).train[0].numel(), flow.denoiser.parameter_count
    return {
        "fit_seconds": time.perf_counter() - started,
        "peak_gb": peak.gigabytes,
        "largest_tensor": largest.numel,
        "d": d,
        "p": p,
        "last_layer": posteriors["last"].size,
        "calibrated": [posteriors["calibrated"].scale, posteriors["calibrated"].prior_precision],
    }


def conditions(name: str, n: int, null: bool = False) -> dict[str, Tensor]:
    """The labels that samples are drawn with: all classes in turn, or none."""
    if name not in realmodels.CONDITIONAL:
        return {}
    labels = torch.arange(n) % len(realdata.load(name).classes)
    return {"class_labels": torch.full_like(labels, realmodels.NULL) if null else labels}


def score_methods(
    config: Mapping[str, Any], seed: int, size: Mapping[str, int], members: list[Any], drawn: list[Any]
) -> tuple[Scored, Tensor, dict[str, float]]:
    """The samples and scores of every method, the variance of the samples, and what it took."""
    name = config["name"]
    flow, judge = realmodels.flow(config), judge_of(name)
    shape, cond = realdata.load(name).train.shape[1:], conditions(name, size["n"])
    subject = Subject(
        flow.denoiser,
        flow.schedule,
        flow.steps(size["walk"]),
        fit_posteriors(config, flow, size),
        {"n": size["n"], "shape": shape, "seed": seed, "cond": cond, "batch_size": size["batch"]},
        {"derivative": derivative_of(name)},
    )
    started = time.perf_counter()
    with Largest() as largest, Peak() as peak:
        ours = subject.sample(OURS, observe=judge.logits)
    took = {
        "scored_seconds": time.perf_counter() - started,
        "peak_gb": peak.gigabytes,
        "largest_tensor": largest.numel,
    }
    scored = Scored()
    scored.take_run(OURS, ours)
    scored.add(LOGITS, ours.observed_variance.sum(1))
    features = judge.body if len(shape) == 3 else None
    rivals = Baselines(
        {"directions": DIRECTIONS}, features=features, members=members, drawn=drawn, last=(5, 10)
    )
    score_with(subject, RUNS, rivals, scored)
    scored.add(DEFAULT, scored.methods["FLARE calibrated, expected_residual"][1])
    return scored, ours.variance, took | {"plain_seconds": scored.plain_seconds}


def study_job(
    config: Mapping[str, Any],
    seed: int,
    n: int,
    walk: int,
    count: int,
    pairs: int,
    batch: int,
    ensemble: list[Any],
    hyper: Mapping[str, Any] | None,
) -> Found:
    """Every method on one model and seed: how well it finds what the judge calls bad, and what it keeps."""
    name = config["name"]
    size = {"n": n, "walk": walk, "count": count, "pairs": pairs, "batch": batch}
    members = [realmodels.flow(member).denoiser for member in ensemble]
    drawn = realmodels.hypernetwork(hyper) if hyper else []
    scored, variance, took = score_methods(config, seed, size, members, drawn)
    samples = scored.samples
    real, judge = realdata.load(name), judge_of(name)
    bad = {source: _bad(judge, name, x) for source, x in samples.items()}
    strange = {source: judge.strangeness(x) for source, x in samples.items()}
    scored.add("oracle", strange["shared"] + 1e3 * bad["shared"])
    regions = flare.strata(samples["shared"], min(STRATA, n), like=real.train)
    flow = realmodels.flow(config)
    typical = _typical(flow, fit_posteriors(config, flow, size)["calibrated"], config, 10 * n)
    rows: dict[str, Any] = {}
    for method, (source, score) in scored.methods.items():
        own = {"strata": regions, "typical": typical} if method == DEFAULT else {}
        mask = flare.keep_fraction(score, 0.5, **own)
        far = strange[source] > strange[source].quantile(0.8)
        rows[method] = {
            **_assess(judge, real, samples[source], bad[source], mask),
            "auroc_strange": metrics.auroc(score, far),
            **detection(score, bad[source]),
        }
    everything = torch.ones(n, dtype=torch.bool)
    rows["all samples"] = _assess(judge, real, samples["shared"], bad["shared"], everything)
    tensors = {
        "samples": samples["shared"],
        "variance": variance,
        "bad": bad["shared"],
        "default": scored.methods[DEFAULT][1],
        "trace": scored.methods["FLARE calibrated, trace"][1],
        "residual": scored.methods["residual"][1],
    }
    return {"rows": rows, "took": took, "typical": typical, **tensors}


def _assess(judge: Judge, real: realdata.Real, x: Tensor, bad: Tensor, mask: Tensor) -> dict[str, float]:
    """The samples that a filter keeps: how many are bad, how far they are, whether a class is missing."""
    shares = metrics.mode_shares(judge.look(x)[2][mask], len(real.classes))
    return {
        "rate_before": metrics.rate(bad),
        "rate": metrics.rate(bad, mask),
        "energy_distance": metrics.energy_distance(x[mask], real.test),
        "smallest_class": float(shares.min()),
    }


def _bad(judge: Judge, name: str, x: Tensor) -> Tensor:
    """What no real sample looks like; of a conditional model also what is not of the class asked for."""
    wrong = judge.bad(x)
    if name in realmodels.CONDITIONAL:
        wrong |= judge.look(x)[2] != conditions(name, len(x))["class_labels"]
    return wrong


def _typical(flow: DiffusersModel, posterior: Any, config: Mapping[str, Any], at_most: int) -> float:
    """The score that nine of ten training samples stay below."""
    x, cond = realmodels.data(config)
    x, cond = x[: min(500, at_most)], {key: value[: min(500, at_most)] for key, value in cond.items()}
    scores = flare.score(
        flow.denoiser, posterior, flow.schedule, x, score="expected_residual", directions=DIRECTIONS,
        cond=cond, derivative=derivative_of(config["name"]), batch_size=100,
    )  # fmt: skip
    return float(scores.quantile(TYPICAL))


class Peak:
    """How far the resident memory of this process rises inside the block, in GB; on Linux."""

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        self.gigabytes = -self._read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.gigabytes += self._read("VmHWM")

    @staticmethod
    def _read(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith(key))


def jobs(quick: bool) -> list[Job]:
    """Training, fitting, and a job a study and seed."""
    out = []
    for study in STUDIES:
        size = (QUICK if quick else FULL)[study]
        config = model_config(study, quick)
        alone = study in ALONE
        ensemble = [] if alone else [model_config(study, quick, seed=s) for s in MEMBERS]
        hyper = None if alone else model_config(study, quick, seed=HYPER)
        out += [realmodels.training(c) for c in (config, *ensemble)]
        out += [realmodels.hyper_training(hyper)] if hyper else []
        fit = {"config": config, "count": size["count"], "pairs": size["pairs"]}
        out.append(Job(f"real-fit-{study}", fit_job, fit, stage=1))
        for seed in SEEDS[:1] if quick else SEEDS:
            more = {"config": config, "seed": seed, "ensemble": ensemble, "hyper": hyper, **size}
            out.append(Job(f"real-{study}-{seed}", study_job, more, stage=2))
    return out
