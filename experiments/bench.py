"""All methods on the four data sets: Table 1 of the paper, and which score finds the bad samples.

One job a data set and seed. Every method scores what it samples; methods that do not move the samples
share them, by the seed. The default score is chosen by `choice` on other seeds than those reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare import baselines, zoo
from flare.baselines import hyperdm
from flare.evaluation import discriminator, filters, metrics
from flare.network.training import Training, train

from .lab import Found, Job, calibrate, load_or_fit, load_or_train, pairs, training

NAMES = ("grid", "sines", "sines-early", "chirp", "damped")
SERIES = NAMES[1:]
MIXTURES = NAMES[:3]
EARLY = 6_000  # training steps of sines-early; the shipped sines model makes next to no bad samples
SEEDS = (5, 6, 7, 8, 9)
KEPT = dict.fromkeys(NAMES, 0.5) | {"chirp": 0.25}
SUBSET = {"grid": 781, "sines": 833, "sines-early": 833, "chirp": 4_412, "damped": 4_412}
DIRECTIONS = 4
PRINTED = {"prior_precision": 1e-6, "scale": 1.0}  # as in the paper
SECANT = ("chirp", "damped")  # changes by secants: one more call a direction
STRATA, TYPICAL = 16, 0.9
MEMBERS = 3  # of the ensemble, besides the shipped model
FULL = {
    "n": dict.fromkeys(NAMES, 1_000) | {"chirp": 800, "damped": 800},
    "pairs": 20_000,
    "steps": 15_000,
}
QUICK = {"n": dict.fromkeys(NAMES, 200), "pairs": 1_000, "steps": 300}
SIZES = {"full": FULL, "quick": QUICK}
SCORES = ("trace", "off_manifold", "residual_variance", "expected_residual")
DEFAULT = "FLARE default"


def truth_of(label: str) -> str:
    """The data set that a model was trained on."""
    return label.split("-")[0]


def early_config() -> dict[str, Any]:
    """Sines, stopped early."""
    return zoo.configure("sines", steps=EARLY)


def model_of(label: str) -> zoo.Model:
    """The shipped model, or the one that was stopped early."""
    model = load_or_train(early_config()) if label == "sines-early" else zoo.load(label)
    # half the time where a call of the network costs something; the samples are ranked alike
    secant = label in SECANT
    return replace(model, denoiser=model.denoiser.by("secant" if secant else "exact"))


def member_config(name: str, seed: int, steps: int) -> dict[str, Any]:
    """A model of the ensemble: other weights to begin with and another order of the data."""
    return zoo.configure(truth_of(name), steps=steps, seed=100 + seed)


def hypernetwork(name: str, steps: int) -> list[flare.Denoiser]:
    """Ten models of a hypernetwork, trained now or found on disk."""
    from .lab import RUNS, digest

    config = zoo.configure(truth_of(name), steps=steps, seed=200)
    directory = RUNS / "models" / f"hyper-{truth_of(name)}-{digest(config)}"
    net, schedule = zoo.build(config)
    hyper = hyperdm.HyperNetwork(net, seed=200)
    path = directory / "model.safetensors"
    if not path.is_file():
        run = Training(hyper, zoo.datasets.make(**config["dataset"]), schedule, zoo.train_config(config))
        for _ in train(run, directory):
            pass
        flare.checkpoint.save(path, run.weights())
    flare.checkpoint.load_into(hyper, flare.checkpoint.load(path)[0])
    return hyperdm.members(hyper, 10)


def fitted(name: str, model: zoo.Model, count: int) -> dict[str, Any]:
    """The posteriors of a data set, from disk after the first time."""
    denoiser, few = model.denoiser, pairs(model, count)
    subset = min(SUBSET[name], 2 * count)
    config = {"name": name, "pairs": count, "subset": subset}
    random = load_or_fit(
        f"random-{name}",
        config,
        lambda: flare.posteriors.dense(
            denoiser, flare.subsets.random(denoiser, count=subset, seed=0), few, **PRINTED
        ),
        denoiser,
    )
    last = load_or_fit(f"last-{name}", config, lambda: baselines.llla(denoiser, few), denoiser)
    theirs = load_or_fit(
        f"bayesdiff-{name}",
        config,
        lambda: flare.posteriors.diagonal(
            denoiser, flare.subsets.last_layer(denoiser), few, 1.0, float(len(model.data)), curvature="fisher"
        ),
        denoiser,
    )
    return {"random": random, "calibrated": calibrate(random, denoiser), "last": last, "bayesdiff": theirs}


def fit_job(name: str, count: int, steps: int) -> Found:
    """Fit the posteriors and train the hypernetwork of a data set, so that later jobs find them."""
    posteriors = fitted(name, model_of(name), count)
    hypernetwork(name, steps)
    return {"calibrated": [posteriors["calibrated"].scale, posteriors["calibrated"].prior_precision]}


def scored(name: str, seed: int, n: int, count: int, steps: int, walk: int | None) -> tuple[dict, dict]:
    """(samples by source, method -> (source, scores)); the sources are the shared samples, and their own."""
    model = model_of(name)
    denoiser, posterior = model.denoiser, fitted(name, model, count)
    options: dict[str, Any] = {"n": n, "shape": model.shape, "seed": seed}
    ddpm = model.sampler("ddpm", walk)
    samples: dict[str, Tensor] = {}
    methods: dict[str, tuple[str, Tensor]] = {}

    def take(method: str, result: flare.Result, score: str | None = None, source: str = "shared") -> None:
        samples.setdefault(source, result.samples)
        methods[method] = (source, result.scores[score] if score else result.score)

    def tangent(which: str, label: str, scores: Sequence[str] = SCORES) -> None:
        result = flare.sample(
            denoiser, ddpm, posterior[which], directions=DIRECTIONS, score=scores, **options
        )
        for score in scores:
            take(f"{label}, {score}", result, score)

    tangent("calibrated", "FLARE calibrated")
    tangent("random", "FLARE")
    tangent("last", "LLLA, tangent", ["trace"])
    for label, which, rule in (
        ("FLARE, decoupled (as printed)", "random", "decoupled"),
        ("FLARE, released code", "random", "released"),
        ("FLARE, endpoint", "random", "endpoint"),
        ("LLLA, decoupled", "last", "decoupled"),
    ):
        take(
            label,
            flare.sample(
                denoiser, ddpm, posterior[which], rule=rule, score="trace", directions=DIRECTIONS,
                **options,
            ),
        )  # fmt: skip
    take(
        "BayesDiff",
        baselines.bayesdiff(denoiser, ddpm, posterior["bayesdiff"], **options),
        source="bayesdiff",
    )
    ddim = model.sampler("ddim", min(50, model.schedule.T))
    last = calibrate(posterior["last"], denoiser)
    take("generative uncertainty", baselines.generative(denoiser, ddim, last, **options), source="ddim")
    members = [load_or_train(member_config(name, i, steps)).denoiser for i in range(MEMBERS)]
    take("ensemble", baselines.ensemble([denoiser, *members], ddpm, **options))
    models = hypernetwork(name, steps)
    take("HyperDM", hyperdm.sample(models, ddpm, **options), source="hyperdm")
    free = baselines.last_iterates(denoiser, ddpm, **options)
    take("last 10 iterates", free, "last_10")
    take("last 100 iterates", free, "last_100")
    x = samples["shared"]
    methods["residual"] = ("shared", baselines.residual(denoiser, model.schedule, x))
    methods["denoising error"] = ("shared", baselines.denoising_error(denoiser, model.schedule, x, seed=seed))
    methods["random"] = ("shared", filters.random_score(n, seed))
    return samples, methods


def typical_score(model: zoo.Model, posterior: Any, count: int) -> float:
    """The score that nine of ten training samples stay below."""
    order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(0))[: min(2_000, count)]
    real = flare.score(
        model.denoiser, posterior, model.schedule, model.data[order], score="expected_residual",
        directions=DIRECTIONS,
    )  # fmt: skip
    return float(real.quantile(TYPICAL))


def regions_of(model: zoo.Model, x: Tensor) -> Tensor:
    """The region of the training data that each sample lies in."""
    order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(0))[:4_000]
    return flare.strata(x, STRATA, like=model.data[order])


def bench_job(name: str, seed: int, n: int, count: int, steps: int, walk: int | None, judges: int) -> Found:
    """Every method on one data set and seed: detection, filters, and what a discriminator says."""
    model = model_of(name)
    samples, methods = scored(name, seed, n, count, steps, walk)
    held_out = zoo.datasets.make(truth_of(name), 4_000, seed=1)
    reference = zoo.datasets.make(truth_of(name), min(8_000, 4 * count), seed=2)
    benchmark = filters.Benchmark.of(truth_of(name), reference, held_out)
    truths = {source: benchmark.truth(x) for source, x in samples.items()}
    methods["oracle"] = ("shared", truths["shared"].distance)
    # the default: the calibrated expected residual, the same share of every region, typical scores alike
    default = methods["FLARE calibrated, expected_residual"][1]
    methods[DEFAULT] = ("shared", default)
    methods["residual, same filter"] = methods["residual"]
    calibrated_posterior = fitted(name, model, count)["calibrated"]
    means = {
        DEFAULT: typical_score(model, calibrated_posterior, count),
        "residual, same filter": float(
            baselines.residual(model.denoiser, model.schedule, model.data[:2_000]).quantile(TYPICAL)
        ),
    }
    regions = regions_of(model, samples["shared"])
    size = {fraction: round(fraction * n) for fraction in {0.5, KEPT[name]}}
    order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(seed))
    real = model.data[order][: 2 * size[KEPT[name]]]
    seeds = range(judges)
    unfiltered = {
        (source, by): discriminator.judge(real, x, by=by, seeds=seeds, size=size[KEPT[name]])
        for source, x in samples.items()
        for by in ("network", "logistic")
    }
    rows: dict[str, Any] = {}
    for method, (source, score) in methods.items():
        truth, x = truths[source], samples[source]
        far = truth.distance > truth.distance.quantile(0.8)
        options = {"typical": means[method], "strata": regions} if method in means else {}
        row: dict[str, Any] = {"rate_before": metrics.rate(truth.bad)}
        if 0 < truth.bad.sum() < len(x):
            row |= {
                "auroc": metrics.auroc(score, truth.bad),
                "average_precision": metrics.average_precision(score, truth.bad),
            }
        row["auroc_far"] = metrics.auroc(score, far)
        mask = flare.keep_fraction(score, 0.5, **options)
        row |= truth.assess(mask)
        row["far_rate"] = metrics.rate(far, mask)
        mask = flare.keep_fraction(score, KEPT[name], **options)
        for by in ("network", "logistic"):
            after = discriminator.judge(
                real, x[mask], by=by, seeds=seeds, size=min(size[KEPT[name]], int(mask.sum()))
            )
            before = unfiltered[source, by]
            if after.size != before.size:
                before = discriminator.judge(real, x, by=by, seeds=seeds, size=after.size)
            gap = discriminator.gap(before, after)
            row[by] = {
                "gap_closure": gap.gap_closure, "auc": gap.auc, "p": gap.p_value, "interval": gap.interval,
                "accuracy": gap.accuracy, "before": gap.accuracy_unfiltered,
            }  # fmt: skip
        rows[method] = row
    rows["all samples"] = {
        "rate_before": metrics.rate(truths["shared"].bad),
        **truths["shared"].assess(torch.ones(n, dtype=torch.bool)),
    }
    tensors = {f"samples.{source}": x for source, x in samples.items()}
    tensors |= {f"score.{method}": score for method, (_, score) in methods.items()}
    tensors |= {f"distance.{source}": truth.distance for source, truth in truths.items()}
    sources = {method: source for method, (source, _) in methods.items()}
    return {"rows": rows, "sources": sources, **tensors}


def jobs(quick: bool) -> list[Job]:
    """Training, fitting, and a job a data set and seed."""
    size = QUICK if quick else FULL
    seeds, count, steps = (SEEDS[:1] if quick else SEEDS), size["pairs"], size["steps"]
    out = []
    for name in NAMES:
        if name == "sines-early":
            out.append(training(early_config(), name))
        else:
            out += [training(member_config(name, i, steps), f"{name}-{i}") for i in range(MEMBERS)]
        stage = 2 if name == "sines-early" else 1  # it has the hypernetwork of sines
        out.append(Job(f"fit-{name}", fit_job, {"name": name, "count": count, "steps": steps}, stage))
        for seed in seeds:
            config = {"name": name, "seed": seed, "n": size["n"][name], "count": count, "steps": steps}
            config |= {"walk": 40, "judges": 1} if quick else {"walk": None, "judges": 3}
            out.append(Job(f"bench-{name}-{seed}", bench_job, config, stage=3))
    return out


def before(quick: bool) -> list[Job]:
    """What other experiments need of this one: the models and the posteriors."""
    return [job for job in jobs(quick) if job.run is not bench_job]
