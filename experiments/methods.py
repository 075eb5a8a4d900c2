"""Every rule, score and baseline on one model: what the benchmark and the studies on real data share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

import flare
from flare.bench import baselines, metrics

from .lab import calibrate, load_or_fit
from .truth import random_score

DIRECTIONS = 4
SCORES = ("trace", "off_manifold", "residual_variance", "expected_residual")
DEFAULT, BY_REGION = "FLARE verdict", "FLARE verdict, by region"
PRINTED = {"prior_precision": 1e-6, "scale": 1.0}  # as in the paper


@dataclass(frozen=True)
class Setup:
    """A model with its posteriors, and the options of every method that samples from it.

    Attributes:
        denoiser: the network.
        schedule: its noise schedule.
        steps: the sampler's table.
        posteriors: `random`, `calibrated`, `last` and `bayesdiff`.
        options: of every call: n, shape, seed and, where needed, cond and batch_size.
        derivative: the option of calls that take derivatives, or nothing.
    """

    denoiser: flare.Denoiser
    schedule: flare.schedules.Schedule
    steps: flare.samplers.Steps
    posteriors: Mapping[str, Any]
    options: Mapping[str, Any]
    derivative: Mapping[str, str] = field(default_factory=dict)

    def sample(self, run: Run, **more: Any) -> flare.Result:
        """The samples and scores of a run."""
        return flare.sample(
            self.denoiser, self.steps, self.posteriors[run.posterior], rule=run.rule,
            directions=run.directions, score=list(run.methods.values()), **self.options, **self.derivative,
            **more,
        )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One call of `flare.sample`.

    Attributes:
        posterior: which of the setup's.
        rule: of propagation.
        methods: what each score is called in the tables: {method: score}.
        directions: how many.
    """

    posterior: str
    rule: str
    methods: Mapping[str, str]
    directions: int = DIRECTIONS


@dataclass(frozen=True)
class Baselines:
    """What the baselines need besides the setup.

    Attributes:
        bayesdiff: options of BayesDiff.
        generative: sampler's table and source of generative uncertainty; by default the setup's own.
        members: the other models of the ensemble; without any there is no ensemble.
        drawn: models of a hypernetwork; without any there is no HyperDM.
        last: how many of the last iterates, in one score each.
    """

    bayesdiff: Mapping[str, Any] = field(default_factory=dict)
    generative: tuple[flare.samplers.Steps, str] | None = None
    members: Sequence[flare.Denoiser] = ()
    drawn: Sequence[flare.Denoiser] = ()
    last: Sequence[int] = (10, 100)


@dataclass
class Scored:
    """Samples and the scores of each method.

    Methods that do not change the samples share one source, `shared`; the others have their own.

    Attributes:
        samples: by source, (n, *shape) each.
        methods: method -> (source, scores (n,)).
        plain_seconds: the time of sampling without a posterior.
    """

    samples: dict[str, Tensor] = field(default_factory=dict)
    methods: dict[str, tuple[str, Tensor]] = field(default_factory=dict)
    plain_seconds: float = 0.0

    def take(
        self, method: str, result: flare.Result, score: str | None = None, source: str = "shared"
    ) -> None:
        """Add a method whose result has samples and scores."""
        self.samples.setdefault(source, result.samples)
        self.methods[method] = (source, result.scores[score] if score else result.score)

    def take_run(self, run: Run, result: flare.Result) -> None:
        """Add all methods of a run."""
        for method, score in run.methods.items():
            self.take(method, result, score)

    def add(self, method: str, score: Tensor) -> None:
        """Add a score of the shared samples."""
        self.methods[method] = ("shared", score)


def score_with(setup: Setup, runs: Sequence[Run], rivals: Baselines, scored: Scored) -> Scored:
    """Add every run and every baseline to `scored`."""
    for run in runs:
        scored.take_run(run, setup.sample(run))
    denoiser, steps, options = setup.denoiser, setup.steps, setup.options
    theirs = baselines.bayesdiff(
        denoiser, steps, setup.posteriors["bayesdiff"], **rivals.bayesdiff, **options, **setup.derivative
    )
    scored.take("BayesDiff", theirs, source="bayesdiff")
    own_steps, source = rivals.generative or (steps, "shared")
    last = calibrate(setup.posteriors["last"], denoiser)
    generative = baselines.generative(denoiser, own_steps, last, **options)
    scored.take("generative uncertainty", generative, source=source)
    if rivals.members:
        scored.take("ensemble", baselines.ensemble([denoiser, *rivals.members], steps, **options))
    if rivals.drawn:
        scored.take("HyperDM", baselines.ensemble(rivals.drawn, steps, **options), source="hyperdm")
    started = time.perf_counter()
    free = baselines.last_iterates(denoiser, steps, last=rivals.last, **options)
    scored.plain_seconds = time.perf_counter() - started
    for count in rivals.last:
        scored.take(f"last {count} iterates", free, f"last_{count}")
    x, cond, seed = scored.samples["shared"], options.get("cond"), options["seed"]
    scored.add("residual", baselines.Residual(denoiser, setup.schedule).score(x, cond))
    error = baselines.DenoisingError(denoiser, setup.schedule).score(x, cond, seed=seed)
    scored.add("denoising error", error)
    scored.add("random", random_score(len(x), seed))
    return scored


def fit_posteriors(
    file_name: str,
    identity: Mapping[str, Any],
    denoiser: flare.Denoiser,
    pairs: flare.noising.Pairs,
    subset: int,
    data_size: int,
) -> dict[str, Any]:
    """The posteriors of a setup, from disk after the first time.

    Args:
        file_name: with {} for which posterior it is.
        identity: what they depend on besides the library.
        denoiser: the network.
        pairs: what they are fitted to.
        subset: how many random parameters are uncertain.
        data_size: N, the samples of the training data.
    """

    def ready(which: str, fit: Callable[[], Any]) -> Any:
        return load_or_fit(file_name.format(which), identity, fit, denoiser)

    random = ready(
        "random",
        lambda: flare.posteriors.dense(
            denoiser, flare.subsets.random(denoiser, count=subset, seed=0), pairs, **PRINTED
        ),
    )
    return {
        "random": random,
        "calibrated": calibrate(random, denoiser),
        "last": ready("last", lambda: baselines.llla(denoiser, pairs)),
        "bayesdiff": ready(
            "bayesdiff",
            lambda: flare.posteriors.diagonal(
                denoiser, flare.subsets.last_layer(denoiser), pairs, 1.0, float(data_size), curvature="fisher"
            ),
        ),
    }


def detection(score: Tensor, bad: Tensor) -> dict[str, float]:
    """How well a score finds the bad samples; nothing if all or none are bad."""
    if not 0 < bad.sum() < len(bad):
        return {}
    return {"auroc": metrics.auroc(score, bad), "average_precision": metrics.average_precision(score, bad)}
