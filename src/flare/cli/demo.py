"""`flare demo`: the whole job on the shipped models, without downloads or training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command, start
from .bars import bar
from .output import answer, console, show_facts

if TYPE_CHECKING:
    from torch import Tensor

    from ..results.result import Result

NAMES = ("sines", "grid")
COLUMNS = ("model", "bad", "bad among kept", "random filter", "modes kept", "fit", "sampling", "scoring")
RATES = ("hallucinated", "after_the_filter", "after_a_random_filter")


@dataclass(frozen=True)
class Outcome:
    """What came of one model.

    Attributes:
        result: the samples with their scores.
        kept: which of them the filter keeps, (n,) bool.
        facts: what was measured.
        seconds: how long each step took.
        settings: how the result was made.
    """

    result: Result
    kept: Tensor
    facts: dict[str, Any]
    seconds: dict[str, float]
    settings: dict[str, Any]


@command()
def demo(
    directory: Annotated[Path, typer.Option("--out", help="The directory to write.")] = Path("flare-demo"),
    n: Annotated[int, typer.Option("-n", help="Number of samples per model.")] = 1000,
    keep: options.Keep = 0.5,
    seed: options.Seed = 0,
    threads: options.Threads = 1,  # small networks gain little from a second thread
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit, sample, score and filter the shipped sines and grid models, and write a report for each.

    Example: `flare demo --out flare-demo`
    """
    start(threads)
    outcomes = {}
    for name in NAMES:
        outcomes[name] = outcome = _run_model(name, n, keep, seed, quiet or json)
        settings = outcome.settings
        outcome.result.save(directory / f"{name}.safetensors", **settings, **outcome.seconds)
        kept = outcome.result.select(outcome.kept)
        kept.save(directory / f"{name}-kept.safetensors", **settings)
        page = "report.html" if name == NAMES[0] else f"report-{name}.html"
        _write_report(directory / page, name, outcome, keep)
    if json:
        show_facts(True, quiet, {name: outcome.facts for name, outcome in outcomes.items()}, last="")
        return
    if not quiet:
        _print_table(outcomes)
    answer(str(directory / "report.html"))


def _run_model(name: str, n: int, keep: float, seed: int, quiet: bool) -> Outcome:
    """Fit, sample, score and filter one model, and judge it by the truth."""
    import torch

    from .. import keep_fraction, posteriors, sample, zoo
    from ..diffusion import noising
    from ..network import subsets

    model = zoo.load(name)
    clock = [time.perf_counter()]
    subset = subsets.random(model.denoiser, fraction=0.1, seed=seed)
    pairs = noising.pairs(model.data, model.schedule, n=10_000, seed=seed, weighting=model.weighting)
    posterior = posteriors.dense(
        model.denoiser, subset, pairs, "marglik", "calibrated", progress=bar(f"{name}: fitting", quiet)
    )
    clock.append(time.perf_counter())
    arguments: dict[str, Any] = {"n": n, "shape": model.shape, "seed": seed}
    sample(model.denoiser, model.steps, **arguments, progress=bar(f"{name}: sampling", quiet))
    clock.append(time.perf_counter())
    # the expected residual first: keeping half by the trace drops whole modes (docs/reproduction.md)
    result = sample(
        model.denoiser, model.steps, posterior, **arguments,
        score=["expected_residual", "trace"],
        progress=bar(f"{name}: sampling with scores", quiet),
    )  # fmt: skip
    clock.append(time.perf_counter())
    seconds = _split_times(clock)
    kept = keep_fraction(result.score, keep)
    shuffled = keep_fraction(torch.rand(n, generator=torch.Generator().manual_seed(seed)), keep)
    facts = _judge(name, result.samples, model.data, kept, shuffled)
    facts |= {f"{step}_seconds": value for step, value in seconds.items()}
    chosen = f"random, {subset.size:,} of {model.denoiser.parameter_count:,}"
    return Outcome(result, kept, facts, seconds, {"model": name, "subset": chosen, **result.about})


def _split_times(clock: Sequence[float]) -> dict[str, float]:
    """Seconds per step; scoring is what sampling with scores costs beyond plain sampling."""
    fit, sampling, scored = (after - before for before, after in pairwise(clock))
    return {"fit": round(fit, 2), "sampling": round(sampling, 2), "scoring": round(scored - sampling, 2)}


def _judge(name: str, samples: Tensor, data: Tensor, kept: Tensor, shuffled: Tensor) -> dict[str, Any]:
    """Hallucination rates without a filter, with it and with a random one; fractions of the modes kept."""
    from ..evaluation import metrics, oracles

    bad = oracles.find_hallucinations(name, samples, data)
    modes = oracles.modes(name, samples[kept]).bincount() / kept.sum()
    rates = (metrics.rate(bad), metrics.rate(bad, kept), metrics.rate(bad, shuffled))
    return {
        **dict(zip(RATES, rates, strict=True)),
        "smallest_mode": float(modes.min()),
        "largest_mode": float(modes.max()),
    }


def _write_report(path: Path, name: str, outcome: Outcome, keep: float) -> None:
    from ..report import write

    before, after, random = (outcome.facts[rate] for rate in RATES)
    write(
        path,
        outcome.result,
        keep=keep,
        title=f"FLARE on {name}",
        settings=outcome.settings,
        timings={f"{step} (s)": f"{value:.1f}" for step, value in outcome.seconds.items()},
        summary=[
            ("Hallucination rate", f"{before:.2%}"),
            (f"After keeping {keep:.0%} by score", f"{after:.2%}"),
            (f"After keeping a random {keep:.0%}", f"{random:.2%}"),
        ],
    )


def _print_table(outcomes: dict[str, Outcome]) -> None:
    from rich.table import Table

    table = Table(*COLUMNS)
    for name, outcome in outcomes.items():
        facts = outcome.facts
        rates = (f"{facts[rate]:.2%}" for rate in RATES)
        modes = f"{facts['smallest_mode']:.0%} to {facts['largest_mode']:.0%}"
        table.add_row(name, *rates, modes, *(f"{value:.1f} s" for value in outcome.seconds.values()))
    console(stderr=True).print(table)
