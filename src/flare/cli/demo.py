"""`flare demo`: the whole job on shipped models with real failures, without downloads or training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command, start
from .bars import bar
from .claims import claim
from .output import answer, console, remark, show_facts

if TYPE_CHECKING:
    from torch import Tensor

    from ..bench import Model
    from ..results.result import Result

PAIRS, SUBSET = 4_000, 1_000  # of the posterior: enough for both models, and quick
P_VALUE = 0.05
COLUMNS = ("model", "bad samples", "among trusted", "among the best {:.0%}", "random {:.0%}", "seconds")
RATES = ("bad", "bad_among_trusted", "bad_among_kept", "bad_after_a_random_filter")


@dataclass(frozen=True)
class Example:
    """A shipped model, and how its samples are judged.

    Attributes:
        title: of its report.
        page: the name of its report.
        judge: in words, who says which samples are bad.
        held_out: makes real data that the model has not seen.
        find_bad: which samples are bad, by the model and its samples.
        group: labels samples for the report.
    """

    title: str
    page: str
    judge: str
    held_out: Callable[[], Tensor]
    find_bad: Callable[[Model, Tensor], Tensor]
    group: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of one model.

    Attributes:
        result: the samples with their verdict.
        kept: which of them the filter keeps, (n,) bool.
        bad: which of them are bad, (n,) bool.
        facts: what was measured.
        seconds: how long each step took.
    """

    result: Result
    kept: Tensor
    bad: Tensor
    facts: dict[str, Any]
    seconds: dict[str, float]


def _held_out_digits() -> Tensor:
    from ..bench import datasets

    return datasets.labeled_digits()[0][datasets.TRAINING_DIGITS :]


def _find_bad_digits(model: Model, samples: Tensor) -> Tensor:
    from ..bench.digit_judge import train_judge

    return train_judge().find_bad(samples)


def _held_out_grid() -> Tensor:
    from ..bench import datasets

    return datasets.grid(1_000, seed=1)


def _find_bad_points(model: Model, samples: Tensor) -> Tensor:
    from ..bench import oracles

    return oracles.find_hallucinations(model.name, samples, model.data)


def _group_points(samples: Tensor) -> Tensor:
    from ..bench import oracles

    return oracles.modes("grid", samples)


EXAMPLES = {
    "digits": Example(
        "FLARE on handwritten digits",
        "report.html",
        "a classifier, trained now on real digits and on blends of two, says that it is no digit",
        _held_out_digits,
        _find_bad_digits,
    ),
    "grid": Example(
        "FLARE on a grid of nine Gaussians",
        "report-grid.html",
        "it is farther from all nine modes than 99.9% of real points (the exact truth)",
        _held_out_grid,
        _find_bad_points,
        _group_points,
    ),
}


@command()
def demo(
    directory: Annotated[Path, typer.Option("--out", help="The directory to write.")] = Path("flare-demo"),
    n: Annotated[int, typer.Option("-n", help="Number of samples per model.")] = 1000,
    keep: options.Keep = 0.5,
    seed: options.Seed = 0,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit, sample, judge and filter two shipped models, images of digits and points, and write reports.

    Example: `flare demo --out flare-demo`
    """
    from ..core.validation import require_positive_int

    start(threads)
    require_positive_int("-n", n)
    outcomes = {}
    with claim(directory):
        for name, example in EXAMPLES.items():
            outcomes[name] = outcome = _run(name, example, n, keep, seed, quiet or json)
            settings = {"model": name, "judge": example.judge, **outcome.result.about}
            outcome.result.save(directory / f"{name}.safetensors", **settings, **outcome.seconds)
            outcome.result.select(outcome.kept).save(directory / f"{name}-kept.safetensors", **settings)
            _write_report(directory / example.page, name, example, outcome, keep)
    if json:
        show_facts(True, quiet, {name: outcome.facts for name, outcome in outcomes.items()}, last="")
        return
    if not quiet:
        _print_table(outcomes, keep)
        others = [str(directory / example.page) for example in EXAMPLES.values()][1:]
        remark("", f"Open this file in a browser (the other is {', '.join(others)}):")
    answer(str(directory / next(iter(EXAMPLES.values())).page))


def _run(name: str, example: Example, n: int, keep: float, seed: int, quiet: bool) -> Outcome:
    """Fit, sample, judge and filter one model; then ask who knows which samples are bad."""
    import torch

    from .. import bench, fit, keep_fraction

    model = bench.load(name)
    clock = [time.perf_counter()]
    scorer = fit(
        model.denoiser, model.data, model.schedule, held_out=example.held_out(), subset=SUBSET, pairs=PAIRS,
        weighting=model.weighting, seed=seed, progress=bar(f"{name}: fitting", quiet),
    )  # fmt: skip
    clock.append(time.perf_counter())
    result = scorer.sample(n, seed=seed, progress=bar(f"{name}: sampling and judging", quiet))
    clock.append(time.perf_counter())
    bad = example.find_bad(model, result.samples)
    seconds = {"fit": clock[1] - clock[0], "sampling": clock[2] - clock[1]}
    kept, trusted = result.keep(keep), result.trusted(P_VALUE)
    shuffled = keep_fraction(torch.rand(n, generator=torch.Generator().manual_seed(seed)), keep)
    masks = (torch.ones_like(kept), trusted, kept, shuffled)
    facts: dict[str, Any] = dict(zip(RATES, (_rate(bad, mask) for mask in masks), strict=True))
    facts |= {"trusted": float(trusted.double().mean()), "judge": example.judge}
    facts |= {f"{step}_seconds": round(value, 2) for step, value in seconds.items()}
    return Outcome(result, kept, bad, facts, {step: round(value, 2) for step, value in seconds.items()})


def _rate(bad: Tensor, mask: Tensor) -> float | None:
    """The share of bad samples among those of a mask; None if it is empty."""
    return float(bad[mask].double().mean()) if mask.any() else None


def _write_report(path: Path, name: str, example: Example, outcome: Outcome, keep: float) -> None:
    from .. import bench
    from ..report import write

    before, trusted, kept, random = (_percent(outcome.facts[rate]) for rate in RATES)
    write(
        path,
        outcome.result,
        keep=keep,
        alpha=P_VALUE,
        title=example.title,
        timings=outcome.seconds,
        summary=[
            ("Bad samples", f"{before} ({example.judge})"),
            (f"Bad among those with p > {P_VALUE:g}", trusted),
            (f"Bad among the best {keep:.0%}", kept),
            (f"Bad among a random {keep:.0%}", random),
        ],
        data=bench.load(name).data,
        groups=None if example.group is None else example.group(outcome.result.samples),
        bad=outcome.bad,
    )


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def _print_table(outcomes: dict[str, Outcome], keep: float) -> None:
    from rich.table import Table

    table = Table(*(column.format(keep) for column in COLUMNS))
    for name, outcome in outcomes.items():
        before, trusted, kept, random = (_percent(outcome.facts[rate]) for rate in RATES)
        share = f"{trusted} (keeps {outcome.facts['trusted']:.0%})"
        table.add_row(name, before, share, kept, random, f"{sum(outcome.seconds.values()):.0f}")
    console(stderr=True).print(table)
    for name in outcomes:
        remark("", f"{name}: a sample is bad if {EXAMPLES[name].judge}.")
