"""The models of the reproduction: the shipped ones, variants by label, and rivals trained as long."""

from __future__ import annotations

from typing import Any

import flare
from flare import bench

from . import hyperdm, lab, methods, paper_rule
from .files import load_tensors, save_tensors
from .lab import load_or_fit, load_or_train, pairs

EARLY = 6_000  # training steps of early models; the shipped sines model makes next to no bad samples
SECANT = ("chirp", "damped")  # derivatives by secants: one more call per direction
WHOLE = 10_000  # all parameters are a posterior up to here
SUBSET = {"grid": 781, "sines": 833, "sines-16": 833, "chirp": 4_412, "damped": 4_412}


def truth_of(label: str) -> str:
    """The data set that a model was trained on."""
    return label.split("-")[0]


def subset_size(label: str) -> int:
    """How many random parameters are uncertain: a tenth of small networks; that of the paper on chirp."""
    return SUBSET.get(label, SUBSET[truth_of(label)])


def config_of(label: str) -> dict[str, Any] | None:
    """The configuration of a model that has to be trained; None for a shipped one.

    `-early` was stopped early, `-16` is a narrower network. `-linear` has the linear schedule and `-capped`
    the cosine schedule with β ≤ 0.02; the sines with other schedules are stopped early, too.
    """
    name, _, variant = label.partition("-")
    if not variant:
        return None
    if variant == "16":
        return bench.configure(name, width=16)
    config = bench.configure(name, **({"steps": EARLY} if name == "sines" else {}))
    T = config["schedule"]["T"]
    schedules = {"linear": flare.schedules.linear(T), "capped": flare.schedules.cosine(T, 0.02)}
    return config if variant == "early" else {**config, "schedule": dict(schedules[variant].spec)}


def model_of(label: str) -> bench.Benchmark:
    """A model by its label."""
    config = config_of(label)
    model = bench.load(label) if config is None else load_or_train(config)
    # secants halve the time of large networks and rank the samples alike
    model.denoiser = model.denoiser.by("secant" if label in SECANT else "exact")
    return model


def member_config(label: str, seed: int, steps: int | None) -> dict[str, Any]:
    """A model of the ensemble: other initial weights and another order of the data, trained as long."""
    return bench.configure(truth_of(label), **_length(label, steps), seed=100 + seed)


def hypernetwork(label: str, steps: int | None) -> list[flare.Denoiser]:
    """Ten models of a hypernetwork, from disk or trained now, as long as the model itself unless said."""
    config = bench.configure(truth_of(label), **_length(label, steps), seed=200)
    directory = lab.RUNS / "models" / f"hyper-{truth_of(label)}-{lab.digest(config)}"
    net, schedule = bench.build(config)
    hyper = hyperdm.HyperNetwork(net, seed=200)
    path = directory / "model.safetensors"
    if not path.is_file():
        data = bench.datasets.make(**config["dataset"])
        run = flare.training.Training(hyper, data, schedule, bench.train_config(config))
        for _ in flare.training.train(run, directory):
            pass
        save_tensors(path, run.weights())
    hyper.load_state_dict(load_tensors(path))
    return hyperdm.members(hyper, 10)


def _length(label: str, steps: int | None) -> dict[str, int]:
    """The training steps of a rival: those of the model itself unless given."""
    if steps is not None:
        return {"steps": steps}
    return {"steps": EARLY} if label == "sines-early" else {}


def fit_posteriors(label: str, model: bench.Benchmark, count: int) -> dict[str, Any]:
    """The posteriors of `methods` on a model, from disk after the first time."""
    subset = min(subset_size(label), 2 * count)
    identity = {"name": label, "pairs": count, "subset": subset}
    few = pairs(model, count)
    return methods.fit_posteriors(f"{{}}-{label}", identity, model.denoiser, few, subset, len(model.data))


def fit_everything(label: str, model: bench.Benchmark, count: int) -> Any:
    """The dense posterior over all parameters, from disk after the first time; None if they are too many."""
    if model.denoiser.parameter_count > WHOLE:
        return None

    def fit() -> Any:
        everything = flare.subsets.everything(model.denoiser)
        return flare.posteriors.dense(model.denoiser, everything, pairs(model, count), **methods.PRINTED)

    return load_or_fit(f"everything-{label}", {"name": label, "pairs": count}, fit, model.denoiser)


def fit_block(label: str, model: bench.Benchmark, count: int) -> Any:
    """The posterior over one output of the last layer, which says everything about the others."""

    def fit() -> Any:
        row = paper_rule.first_row(model.denoiser)
        return flare.posteriors.dense(model.denoiser, row, pairs(model, count), **methods.PRINTED, probes=1)

    return load_or_fit(f"block-{label}", {"name": label, "pairs": count}, fit, model.denoiser)
