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
from flare import baselines
from flare.evaluation import filters, metrics
from flare.integrations.diffusers import DiffusersModel

from . import realdata, realmodels
from .bench import PRINTED, STRATA, TYPICAL
from .judge import Judge
from .lab import Found, Job, calibrate, load_or_fit

# study -> data set, and how its model is trained: that of digits makes few bad samples, hence an early one
STUDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "digits-early": ("digits", {"steps": 500, "warmup": 100, "ema": 0.99}),
    "mnist": ("mnist", {}),
    "air": ("air", {}),
    "power": ("power", {}),
}
SEEDS = (0, 1, 2)
DIRECTIONS = 4
WEIGHTING = "min_snr"
DEFAULT = "FLARE default"
LOGITS = "variance of a classifier's logits"
SCORES = ("trace", "off_manifold", "residual_variance", "expected_residual")
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


def fitted(config: Mapping[str, Any], flow: DiffusersModel, size: Mapping[str, int]) -> dict[str, Any]:
    """The posteriors of a model, from disk after the first time."""
    x, cond = realmodels.data(config)
    pairs = flow.pairs(x, size["pairs"], seed=0, weighting=WEIGHTING, cond=cond, batch_size=100)
    denoiser = flow.denoiser
    identity = {"config": dict(config), "count": size["count"], "pairs": size["pairs"]}
    label = f"real-{realmodels.label(config)}"
    last = flare.subsets.last_layer(denoiser)
    subset = flare.subsets.random(denoiser, count=size["count"], seed=0)
    random = load_or_fit(
        f"{label}-random",
        identity,
        lambda: flare.posteriors.dense(denoiser, subset, pairs, **PRINTED),
        denoiser,
    )
    return {
        "random": random,
        "calibrated": calibrate(random, denoiser),
        "last": load_or_fit(f"{label}-last", identity, lambda: baselines.llla(denoiser, pairs), denoiser),
        "bayesdiff": load_or_fit(
            f"{label}-bayesdiff",
            identity,
            lambda: flare.posteriors.diagonal(denoiser, last, pairs, 1.0, float(len(x)), curvature="fisher"),
            denoiser,
        ),
    }


def fit_job(config: Mapping[str, Any], count: int, pairs: int) -> Found:
    """Fit the posteriors of a model, watching the memory."""
    flow = realmodels.flow(config)
    started = time.perf_counter()
    with Largest() as largest, Peak() as peak:
        posteriors = fitted(config, flow, {"count": count, "pairs": pairs})
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


def scored(
    config: Mapping[str, Any], seed: int, size: Mapping[str, int], members: list[Any], drawn: list[Any]
) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]], dict[str, Any]]:
    """(samples by source, method -> (source, scores), what it took); who moves no sample shares them."""
    name = config["name"]
    flow = realmodels.flow(config)
    denoiser, posterior, judge = flow.denoiser, fitted(config, flow, size), judge_of(name)
    shape, cond = realdata.load(name).train.shape[1:], conditions(name, size["n"])
    steps = flow.steps(size["walk"])
    plain = {"n": size["n"], "shape": shape, "seed": seed, "cond": cond, "batch_size": size["batch"]}
    options = plain | {"derivative": derivative_of(name)}
    samples: dict[str, Tensor] = {}
    methods: dict[str, tuple[str, Tensor]] = {}

    def take(method: str, result: flare.Result, score: str | None = None, source: str = "shared") -> None:
        samples.setdefault(source, result.samples)
        methods[method] = (source, result.scores[score] if score else result.score)

    started = time.perf_counter()
    with Largest() as largest, Peak() as peak:
        ours = flare.sample(
            denoiser, steps, posterior["calibrated"], directions=DIRECTIONS, score=SCORES,
            observe=judge.logits, **options,
        )  # fmt: skip
    took = {
        "scored_seconds": time.perf_counter() - started,
        "peak_gb": peak.gigabytes,
        "largest_tensor": largest.numel,
    }
    samples["variance"] = ours.variance
    for score in SCORES:
        take(f"FLARE calibrated, {score}", ours, score)
    methods[LOGITS] = ("shared", ours.observed_variance.sum(1))
    for label, which, rule in (
        ("FLARE, tangent", "random", "tangent"),
        ("FLARE, decoupled (as printed)", "random", "decoupled"),
        ("FLARE, released code", "random", "released"),
        ("FLARE, endpoint", "random", "endpoint"),
        ("LLLA, tangent", "last", "tangent"),
    ):
        fit = posterior[which]
        take(
            label,
            flare.sample(denoiser, steps, fit, rule=rule, score="trace", directions=DIRECTIONS, **options),
        )
    theirs = baselines.bayesdiff(denoiser, steps, posterior["bayesdiff"], directions=DIRECTIONS, **options)
    take("BayesDiff", theirs, source="bayesdiff")
    last = calibrate(posterior["last"], denoiser)
    features = judge.body if len(shape) == 3 else None
    take("generative uncertainty", baselines.generative(denoiser, steps, last, features=features, **plain))
    if members:
        take("ensemble", baselines.ensemble([denoiser, *members], steps, **plain))
    if drawn:
        take("HyperDM", baselines.hyperdm.sample(drawn, steps, **plain), source="hyperdm")
    started = time.perf_counter()
    free = baselines.last_iterates(denoiser, steps, last=(5, 10), **plain)
    took["plain_seconds"] = time.perf_counter() - started
    take("last 5 iterates", free, "last_5")
    take("last 10 iterates", free, "last_10")
    x = samples["shared"]
    methods["residual"] = ("shared", baselines.residual(denoiser, flow.schedule, x, cond=cond))
    error = baselines.denoising_error(denoiser, flow.schedule, x, cond=cond, seed=seed)
    methods["denoising error"] = ("shared", error)
    methods["random"] = ("shared", filters.random_score(size["n"], seed))
    methods[DEFAULT] = methods["FLARE calibrated, expected_residual"]
    return samples, methods, took


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
    samples, methods, took = scored(config, seed, size, members, drawn)
    variance = samples.pop("variance")
    real, judge = realdata.load(name), judge_of(name)
    bad = {source: _bad(judge, name, x) for source, x in samples.items()}
    strange = {source: judge.strangeness(x) for source, x in samples.items()}
    methods["oracle"] = ("shared", strange["shared"] + 1e3 * bad["shared"])
    regions = flare.strata(samples["shared"], min(STRATA, n), like=real.train)
    flow = realmodels.flow(config)
    typical = _typical(flow, fitted(config, flow, size)["calibrated"], config, 10 * n)
    rows: dict[str, Any] = {}
    for method, (source, score) in methods.items():
        wrong, x = bad[source], samples[source]
        own = {"strata": regions, "typical": typical} if method == DEFAULT else {}
        mask = flare.keep_fraction(score, 0.5, **own)
        row = {
            "rate_before": metrics.rate(wrong),
            "rate": metrics.rate(wrong, mask),
            "auroc_strange": metrics.auroc(score, strange[source] > strange[source].quantile(0.8)),
            "energy_distance": metrics.energy_distance(x[mask], real.test),
            "smallest_class": float(metrics.mode_shares(judge.look(x)[2][mask], len(real.classes)).min()),
        }
        if 0 < wrong.sum() < len(x):
            row |= {
                "auroc": metrics.auroc(score, wrong),
                "average_precision": metrics.average_precision(score, wrong),
            }
        rows[method] = row
    everything = torch.ones(n, dtype=torch.bool)
    shares = metrics.mode_shares(judge.look(samples["shared"])[2], len(real.classes))
    rows["all samples"] = {
        "rate_before": metrics.rate(bad["shared"]),
        "rate": metrics.rate(bad["shared"], everything),
        "energy_distance": metrics.energy_distance(samples["shared"], real.test),
        "smallest_class": float(shares.min()),
    }
    tensors = {
        "samples": samples["shared"],
        "variance": variance,
        "bad": bad["shared"],
        "default": methods[DEFAULT][1],
        "trace": methods["FLARE calibrated, trace"][1],
        "residual": methods["residual"][1],
    }
    return {"rows": rows, "took": took, "typical": typical, **tensors}


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
