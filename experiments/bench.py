"""All methods on the four data sets: Table 1 of the paper, and which score finds the bad samples.

One job per data set and seed. Every method scores the samples it draws; methods that do not change the
samples share them. The default score is chosen by `choice`, on other seeds than those reported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flare
from flare import baselines, zoo
from flare.baselines import hyperdm
from flare.evaluation import discriminator, filters, metrics
from flare.network.training import Training, train

from . import lab, methods
from .lab import Found, Job, load_or_train, pairs, training
from .methods import DEFAULT, DIRECTIONS, SCORES, Baselines, Run, Scored, Subject, detection, score_with

NAMES = ("grid", "sines", "sines-early", "chirp", "damped")
SERIES = NAMES[1:]
MIXTURES = NAMES[:3]
EARLY = 6_000  # training steps of the early models; the shipped sines model makes next to no bad samples
SEEDS = (5, 6, 7, 8, 9)
KEPT = dict.fromkeys(NAMES, 0.5) | {"chirp": 0.25}
SUBSET = {"grid": 781, "sines": 833, "sines-early": 833, "chirp": 4_412, "damped": 4_412}
SECANT = ("chirp", "damped")  # derivatives by secants: one more call per direction
STRATA, TYPICAL = 16, 0.9
MEMBERS = 3  # of the ensemble, besides the shipped model
FULL = {
    "n": dict.fromkeys(NAMES, 1_000) | {"chirp": 800, "damped": 800},
    "pairs": 20_000,
    "steps": 15_000,
}
QUICK = {"n": dict.fromkeys(NAMES, 200), "pairs": 1_000, "steps": 300}
SIZES = {"full": FULL, "quick": QUICK}
SOLVERS = ("network", "logistic")  # how the discriminator is trained
RUNS = (
    Run("calibrated", "tangent", {f"FLARE calibrated, {score}": score for score in SCORES}),
    Run("random", "tangent", {f"FLARE, {score}": score for score in SCORES}),
    Run("last", "tangent", {"LLLA, tangent, trace": "trace"}),
    Run("random", "decoupled", {"FLARE, decoupled (as printed)": "trace"}),
    Run("random", "released", {"FLARE, released code": "trace"}),
    Run("random", "endpoint", {"FLARE, endpoint": "trace"}),
    Run("last", "decoupled", {"LLLA, decoupled": "trace"}),
)


def truth_of(label: str) -> str:
    """The data set that a model was trained on."""
    return label.split("-")[0]


def early_config() -> dict[str, Any]:
    """Sines, stopped early."""
    return zoo.configure("sines", steps=EARLY)


def model_of(label: str) -> zoo.Model:
    """The shipped model, or the one that was stopped early."""
    model = load_or_train(early_config()) if label == "sines-early" else zoo.load(label)
    # halves the time of large networks and ranks the samples alike
    secant = label in SECANT
    return replace(model, denoiser=model.denoiser.by("secant" if secant else "exact"))


def member_config(name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """A model of the ensemble: other initial weights and another order of the data, trained as long."""
    return zoo.configure(truth_of(name), **_length(name, steps), seed=100 + seed)


def _length(name: str, steps: int | None) -> dict[str, int]:
    """The training steps of a rival: those of the model itself unless given."""
    if steps is not None:
        return {"steps": steps}
    return {"steps": EARLY} if name == "sines-early" else {}


def hypernetwork(name: str, steps: int | None) -> list[flare.Denoiser]:
    """Ten models of a hypernetwork, from disk or trained now, as long as the model itself unless said."""
    config = zoo.configure(truth_of(name), **_length(name, steps), seed=200)
    directory = lab.RUNS / "models" / f"hyper-{truth_of(name)}-{lab.digest(config)}"
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


def fit_posteriors(name: str, model: zoo.Model, count: int) -> dict[str, Any]:
    """The posteriors of a data set, from disk after the first time."""
    subset = min(SUBSET[name], 2 * count)
    identity = {"name": name, "pairs": count, "subset": subset}
    few = pairs(model, count)
    return methods.fit_posteriors(f"{{}}-{name}", identity, model.denoiser, few, subset, len(model.data))


def fit_job(name: str, count: int, steps: int) -> Found:
    """Fit the posteriors and train the hypernetwork of a data set, for later jobs."""
    posteriors = fit_posteriors(name, model_of(name), count)
    hypernetwork(name, steps)
    return {"calibrated": [posteriors["calibrated"].scale, posteriors["calibrated"].prior_precision]}


def score_methods(name: str, seed: int, n: int, count: int, steps: int, walk: int | None) -> Scored:
    """The samples and scores of every method on one data set and seed."""
    model = model_of(name)
    subject = Subject(
        model.denoiser,
        model.schedule,
        model.sampler("ddpm", walk),
        fit_posteriors(name, model, count),
        {"n": n, "shape": model.shape, "seed": seed},
    )
    rivals = Baselines(
        generative=(model.sampler("ddim", min(50, model.schedule.T)), "ddim"),
        members=[load_or_train(member_config(name, i, steps)).denoiser for i in range(MEMBERS)],
        drawn=hypernetwork(name, steps),
    )
    return score_with(subject, RUNS, rivals, Scored())


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


class Discriminator:
    """How well a discriminator tells samples from real data, before and after a filter.

    Args:
        real: training data, (N, d).
        samples: by source.
        size: samples per class that it is trained on.
        judges: how many discriminators are averaged.
    """

    def __init__(self, real: Tensor, samples: Mapping[str, Tensor], size: int, judges: int) -> None:
        self.real, self.samples, self.size, self.seeds = real, samples, size, range(judges)
        self._unfiltered: dict[tuple[str, str, int], Any] = {}

    def compare(self, source: str, mask: Tensor, by: str) -> dict[str, Any]:
        """The gap that the filter closes, of one source and one kind of discriminator."""
        size = min(self.size, int(mask.sum()))
        after = discriminator.judge(self.real, self.samples[source][mask], by=by, seeds=self.seeds, size=size)
        gap = discriminator.gap(self._before(source, by, after.size), after)
        return {
            "gap_closure": gap.gap_closure, "auc": gap.auc, "p": gap.p_value, "interval": gap.interval,
            "accuracy": gap.accuracy, "before": gap.accuracy_unfiltered,
        }  # fmt: skip

    def _before(self, source: str, by: str, size: int) -> Any:
        key = (source, by, size)
        if key not in self._unfiltered:
            x = self.samples[source]
            self._unfiltered[key] = discriminator.judge(self.real, x, by=by, seeds=self.seeds, size=size)
        return self._unfiltered[key]


def filter_options(name: str, model: zoo.Model, x: Tensor, count: int) -> dict[str, dict[str, Any]]:
    """The methods with the recommended filter: equal fractions of every region, typical scores tied."""
    posterior = fit_posteriors(name, model, count)["calibrated"]
    real = baselines.residual(model.denoiser, model.schedule, model.data[:2_000])
    regions = regions_of(model, x)
    return {
        DEFAULT: {"typical": typical_score(model, posterior, count), "strata": regions},
        "residual, same filter": {"typical": float(real.quantile(TYPICAL)), "strata": regions},
    }


def bench_job(name: str, seed: int, n: int, count: int, steps: int, walk: int | None, judges: int) -> Found:
    """Every method on one data set and seed: detection, filters, and what a discriminator says."""
    model = model_of(name)
    scored = score_methods(name, seed, n, count, steps, walk)
    samples = scored.samples
    held_out = zoo.datasets.make(truth_of(name), 4_000, seed=1)
    reference = zoo.datasets.make(truth_of(name), min(8_000, 4 * count), seed=2)
    benchmark = filters.Benchmark.of(truth_of(name), reference, held_out)
    truths = {source: benchmark.truth(x) for source, x in samples.items()}
    scored.add("oracle", truths["shared"].distance)
    scored.add(DEFAULT, scored.methods["FLARE calibrated, expected_residual"][1])
    scored.add("residual, same filter", scored.methods["residual"][1])
    options = filter_options(name, model, samples["shared"], count)
    size = round(KEPT[name] * n)
    order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(seed))
    judge = Discriminator(model.data[order][: 2 * size], samples, size, judges)
    rows: dict[str, Any] = {}
    for method, (source, score) in scored.methods.items():
        truth, own = truths[source], options.get(method, {})
        far = truth.distance > truth.distance.quantile(0.8)
        mask = flare.keep_fraction(score, 0.5, **own)
        rows[method] = {
            "rate_before": metrics.rate(truth.bad),
            **detection(score, truth.bad),
            "auroc_far": metrics.auroc(score, far),
            **truth.assess(mask),
            "far_rate": metrics.rate(far, mask),
        }
        mask = flare.keep_fraction(score, KEPT[name], **own)
        rows[method] |= {by: judge.compare(source, mask, by) for by in SOLVERS}
    rows["all samples"] = {
        "rate_before": metrics.rate(truths["shared"].bad),
        **truths["shared"].assess(torch.ones(n, dtype=torch.bool)),
    }
    tensors = {f"samples.{source}": x for source, x in samples.items()}
    tensors |= {f"score.{method}": score for method, (_, score) in scored.methods.items()}
    tensors |= {f"distance.{source}": truth.distance for source, truth in truths.items()}
    sources = {method: source for method, (source, _) in scored.methods.items()}
    return {"rows": rows, "sources": sources, **tensors}


def jobs(quick: bool) -> list[Job]:
    """Training, fitting, and one job per data set and seed."""
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
    """The jobs that other experiments need: models and posteriors."""
    return [job for job in jobs(quick) if job.run is not bench_job]
