"""Table 1 and Figure 1 with power: 2,000 samples per run, both readings of H, rivals in the same reading.

One job per model, seed and data set. A seed draws the samples and the random subset. H is *as printed*
(Eq. 13, no weights) or *weighted* by the model's own training weights. LLLA and BayesDiff are fitted to the
same pairs. After every filter a fresh judge is trained; random filters and the oracle are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench
from flare.bench import baselines, metrics, oracles

from .common import keep, spearman
from .discriminator import judge
from .lab import Found, Job, load_or_train, pairs, training
from .methods import PRINTED
from .models import config_of, member_config, model_of, truth_of
from .paper_rule import LastLayer, PaperSums, Secants, first_row, traces
from .truth import random_score

NAMES = ("sines", "sines-early", "chirp", "damped", "grid")
SERIES = NAMES[:4]
READINGS = {"as printed": "uniform", "weighted": "min_snr"}  # of H
KEPT = dict.fromkeys(SERIES, 0.5) | {"chirp": 0.25}
SEEDS, MODELS = range(5), range(2)
SUBSET = {"grid": 781, "sines": 833, "chirp": 1_500, "damped": 1_500}  # m
DIRECTIONS = {"grid": 64, "sines": 64, "chirp": 32, "damped": 32}
BLIND = 3  # random filters per run
NODES = {"grid": 80, "sines": 80, "chirp": 50, "damped": 50}  # steps at which J Σ Jᵀ is computed
FULL = {"n": 2_000, "count": 4_000, "walk": None}
QUICK = {"n": 200, "count": 200, "walk": 20}


def load(name: str, which: int) -> bench.Benchmark:
    """The model itself, or another one that was trained alike from other initial weights."""
    return load_or_train(member_config(name, which - 1, None)) if which else model_of(name)


def powered_job(name: str, which: int, seed: int, n: int, count: int, walk: int | None) -> Found:
    """The scores of the paper's three methods in both readings, and what a judge says of their filters."""
    model = load(name, which)
    steps = model.sampler("ddpm", walk)
    sources, scores = score_methods(model, truth_of(name), seed, n, count, steps)
    distances = {label: oracles.distance(truth_of(name), x) for label, x in sources.items()}
    real = bench.datasets.make(truth_of(name), 8_000, seed=2)
    threshold = oracles.threshold(truth_of(name), real)
    scores["oracle"] = ("shared", distances["shared"])
    for i in range(BLIND):
        scores[f"random {i}"] = ("shared", random_score(n, 100 * seed + i))
    rows = {
        label: {"source": source, **detect(score, distances[source], threshold)}
        for label, (source, score) in scores.items()
    }
    found: Found = {"rows": rows, "bad": int((distances["shared"] > threshold).sum())}
    if name in KEPT:
        size = round(KEPT[name] * n)
        order = torch.randperm(len(model.data), generator=torch.Generator().manual_seed(seed))
        data = model.data[order[:size]]
        found["before"] = {label: _judge(data, x, seed, size) for label, x in sources.items()}
        for label, (source, score) in scores.items():
            mask = keep(score, KEPT[name])
            rows[label] |= _judge(data, sources[source][mask], seed, size)
    return found


def score_methods(
    model: bench.Benchmark, truth: str, seed: int, n: int, count: int, steps: flare.samplers.Steps
) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
    """The samples by source, and for each method its source and its scores."""
    net = model.denoiser.by("exact")
    subset = flare.subsets.random(net, count=min(SUBSET[truth], 2 * count), seed=seed)
    roots, sources, rivals = {}, {}, []
    scores: dict[str, tuple[str, Tensor]] = {}
    for reading, weighting in READINGS.items():
        few = pairs(model, count, seed=seed, weighting=weighting)
        generator = torch.Generator().manual_seed(seed)
        random = flare.posteriors.dense(net, subset, few, **PRINTED)
        roots[f"FLARE, {reading}"] = subset, random.directions(DIRECTIONS[truth], generator)
        block = flare.posteriors.dense(net, first_row(net), few, **PRINTED, probes=1)
        rivals.append(LastLayer(net, f"LLLA, {reading}", block))
        label = f"BayesDiff, {reading}"
        theirs = baselines.bayesdiff(
            net, steps, _fisher(net, few, len(model.data)), directions=16, n=n, shape=model.shape, seed=seed
        )
        sources[label], scores[label] = theirs.samples, (label, theirs.score)
    sums = PaperSums(net, steps, [Secants(net, roots), *rivals], NODES[truth])
    sources["shared"], found = traces(model, steps, sums, random, n=n, seed=seed)
    return sources, scores | {label: ("shared", score) for label, score in found.items()}


def nodes_job(name: str, n: int, count: int) -> Found:
    """How scores from some of the steps rank samples, compared with those from all steps."""
    model = load(name, 0)
    net, steps = model.denoiser.by("exact"), model.sampler("ddpm")
    subset = flare.subsets.random(net, count=SUBSET[name], seed=0)
    posterior = flare.posteriors.dense(net, subset, pairs(model, count, weighting="uniform"), **PRINTED)
    roots = {"FLARE": (subset, posterior.directions(DIRECTIONS[name], torch.Generator().manual_seed(0)))}
    some, every = (
        traces(model, steps, PaperSums(net, steps, [Secants(net, roots)], nodes), posterior, n=n, seed=0)[1]
        for nodes in (NODES[name], None)
    )
    return {label: spearman(some[label], every[label]) for label in every}


def _fisher(net: flare.Denoiser, few: flare.noising.Pairs, data_size: int) -> Any:
    """BayesDiff's posterior: the diagonal Fisher of the last layer, summed over the data, δ = 1."""
    last = flare.subsets.last_layer(net)
    return flare.posteriors.diagonal(net, last, few, 1.0, float(data_size), curvature="fisher")


def detect(score: Tensor, distance: Tensor, threshold: float) -> dict[str, float]:
    """The AUROC for the farthest fifth, and for bad samples where there are both kinds."""
    bad = distance > threshold
    out = {"far": metrics.auroc(score, distance > distance.quantile(0.8))}
    return out | ({"bad": metrics.auroc(score, bad)} if 0 < bad.sum() < len(bad) else {})


def _judge(real: Tensor, generated: Tensor, seed: int, size: int) -> dict[str, float]:
    """The accuracy and the AUC of a judge that was trained on `size` samples of each kind."""
    accuracy, auc = judge(real, generated, seed, size)
    return {"accuracy": accuracy, "auc": auc}


def jobs(quick: bool) -> list[Job]:
    """Training, then seed by seed, so that a run that is stopped has all data sets; one model if quick."""
    size: Mapping[str, Any] = QUICK if quick else FULL
    names = ("sines", "grid") if quick else NAMES
    out = []
    for name in names:
        configs = [config_of(name)] if quick else [config_of(name), member_config(name, 0, None)]
        out += [training(config, name) for config in configs if config is not None]
    for which in MODELS if not quick else MODELS[:1]:
        for seed in SEEDS if not quick else SEEDS[:2]:
            for name in names:
                config = {"name": name, "which": which, "seed": seed, **size}
                out.append(Job(f"powered-{name}-{which}-{seed}", powered_job, config, stage=2))
    if not quick:
        checked = {"n": 100, "count": 2_000}
        out += [Job(f"nodes-{name}", nodes_job, {"name": name, **checked}, stage=2) for name in SUBSET]
    return out
