"""`flare demo`: the whole job on shipped models with real failures, without downloads or training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import bench
from ..bench import datasets, digit_judge, oracles
from ..report import write
from ..results.result import Result
from ..scorer.fit import fit
from .bars import bar
from .output import show_facts
from .writing import claim

PAIRS, SUBSET = 4_000, 1_000  # of the posterior: enough for both models, and quick
P_VALUE = 0.05


class Example(NamedTuple):
    """A shipped model, and how its samples are judged.

    Attributes:
        title: Title of its report.
        page: Name of its report.
        judge: What makes a sample bad, in words.
        held_out: Makes real data that the model has not seen.
        find_bad: Finds the bad samples, (n,) bool.
        group: Labels samples for the report.
    """

    title: str
    page: str
    judge: str
    held_out: Callable[[], Tensor]
    find_bad: Callable[[Tensor], Tensor]
    group: Callable[[Tensor], Tensor] | None = None


EXAMPLES = {
    "digits": Example(
        "FLARE on handwritten digits",
        "report.html",
        "a classifier, trained now on real digits and on blends of two, says that it is no digit",
        lambda: datasets.labeled_digits()[0][datasets.TRAINING_DIGITS :],
        lambda samples: digit_judge.train_judge().find_bad(samples),
    ),
    "grid": Example(
        "FLARE on a grid of nine Gaussians",
        "report-grid.html",
        "it is farther from all nine modes than 99.9% of real points (the exact truth)",
        lambda: datasets.grid(1_000, seed=1),
        lambda samples: oracles.find_hallucinations("grid", samples, bench.load("grid").data),
        lambda samples: oracles.modes("grid", samples),
    ),
}


def run_demo(out: Path, n: int, keep: float, seed: int, json: bool, quiet: bool) -> None:
    """`flare demo`."""
    found, shown = {}, dict[str, str]()
    with claim(out):
        for name, example in EXAMPLES.items():
            result, timings = _run(name, example, n, seed, quiet or json)
            bad = example.find_bad(result.samples)
            rates = _measure(result, bad, keep, seed)
            settings = {"model": name, "judge": example.judge, **result.about}
            result.save(out / f"{name}.safetensors", **settings)
            result.select(result.keep(keep)).save(out / f"{name}-kept.safetensors", **settings)
            share = {key: "–" if rate is None else f"{rate:.1%}" for key, rate in rates.items()}
            summary = [
                ("Bad samples", f"{share['bad']} ({example.judge})"),
                (f"Bad among those with p > {P_VALUE:g}", share["bad_among_trusted"]),
                (f"Bad among the best {keep:.0%}", share["bad_among_kept"]),
                (f"Bad among a random {keep:.0%}", share["bad_after_a_random_filter"]),
            ]
            write(
                out / example.page, result, keep=keep, alpha=P_VALUE, title=example.title,
                data=bench.load(name).data, bad=bad, timings=timings, summary=summary,
                groups=None if example.group is None else example.group(result.samples),
            )  # fmt: skip
            trusted = float(result.trusted(P_VALUE).double().mean())
            seconds = {f"{step}_seconds": value for step, value in timings.items()}
            found[name] = {**rates, "trusted": trusted, **seconds, "judge": example.judge}
            for label, text in (*summary, ("Open in a browser", str(out / example.page))):
                shown[f"{name}: {label}"] = text
    show_facts(json, quiet, found if json else shown, last=str(out / EXAMPLES["digits"].page))


def _run(name: str, example: Example, n: int, seed: int, quiet: bool) -> tuple[Result, dict[str, float]]:
    """Fit, sample and judge one model, and measure the time."""
    model = bench.load(name)
    started = time.perf_counter()
    scorer = fit(
        model, model.data, held_out=example.held_out(), subset=SUBSET, pairs=PAIRS,
        weighting=model.weighting, seed=seed, progress=bar(f"{name}: fitting", quiet),
    )  # fmt: skip
    fitted = time.perf_counter()
    result = scorer.sample(n, seed=seed, progress=bar(f"{name}: sampling and judging", quiet))
    sampled = time.perf_counter()
    return result, {"fit": round(fitted - started, 2), "sampling": round(sampled - fitted, 2)}


def _measure(result: Result, bad: Tensor, keep: float, seed: int) -> dict[str, float | None]:
    """The rates of bad samples before and after each filter."""
    kept, trusted, everything = result.keep(keep), result.trusted(P_VALUE), torch.ones_like(bad)
    order = torch.randperm(len(bad), generator=torch.Generator().manual_seed(seed))
    shuffled = torch.zeros_like(kept).index_fill(0, order[: int(kept.sum())], True)
    masks = {
        "": everything,
        "_among_trusted": trusted,
        "_among_kept": kept,
        "_after_a_random_filter": shuffled,
    }
    return {
        f"bad{name}": float(bad[mask].double().mean()) if mask.any() else None for name, mask in masks.items()
    }
