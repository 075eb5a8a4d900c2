"""`flare demo`: the whole job on shipped models with real failures, without downloads or training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from .. import bench
from ..bench import datasets, oracles, shapes
from ..diffusion.samplers import ddim
from ..model import STEPS
from ..report import write
from ..results.calibration import Calibration, calibrate
from ..results.result import Result
from ..scorer.fit import fit
from .app import console, remark, show_facts
from .writing import bar, claim

TRAINING, HELD_OUT, PAIRS, SUBSET = 400, 100, 400, 300  # of the fit: small, so that the demo is quick
RISK = 0.1  # of the guarantee: sixty labels allow a bad one


class Example(NamedTuple):
    """A shipped model, and the rule that makes its samples bad.

    Attributes:
        title: Title of its report.
        page: Name of its report.
        judge: What makes a sample bad, in words.
        find_bad: Finds the bad samples, (n,) bool.
        group: Labels samples for the report.
    """

    title: str
    page: str
    judge: str
    find_bad: Callable[[Tensor], Tensor]
    group: Callable[[Tensor], list[str]] | None = None


def _name_shapes(samples: Tensor) -> list[str]:
    words = [*shapes.CLASSES, "other"]
    return [words[k] for k in shapes.classes(samples).tolist()]


EXAMPLES = {
    "shapes": Example(
        "FLARE on colored shapes",
        "report.html",
        "not exactly two whole shapes of two kinds and two colors",
        shapes.bad,
        _name_shapes,
    ),
    "damped": Example(
        "FLARE on damped sines",
        "report-damped.html",
        "farther from every damped sine than 99.9% of real ones",
        lambda samples: oracles.find_hallucinations("damped", samples, bench.load("damped").data),
    ),
}


def run_demo(out: Path, n: int, keep: float, seed: int, json: bool, quiet: bool) -> None:
    """`flare demo`."""
    found: dict[str, dict[str, Any]] = {}
    with claim(out):
        for name, example in EXAMPLES.items():
            result, timings = _run(name, n, seed, quiet or json)
            bad = example.find_bad(result.samples)
            rates, rule = _measure(result, bad, keep, seed), _calibrate(result, bad)
            seconds = {f"{step}_seconds": value for step, value in timings.items()}
            settings = {"model": name, "bad": example.judge, **result.about}
            result.save(out / f"{name}.safetensors", **settings)
            result.select(result.keep(keep)).save(out / f"{name}-kept.safetensors", **settings)
            write(
                out / example.page, result, keep=keep, title=example.title, data=bench.load(name).data,
                bad=bad, settings=settings | seconds,
                summary=[("A sample is bad if it is", example.judge)],
                groups=None if example.group is None else example.group(result.samples),
            )  # fmt: skip
            found[name] = {**rates, "kept_with_labels": rule.kept, "guarantee": str(rule), **seconds}
    if json or quiet:
        show_facts(json, quiet, found, last=str(out / EXAMPLES["shapes"].page))
    else:
        _show(found, out, keep)


def _run(name: str, n: int, seed: int, quiet: bool) -> tuple[Result, dict[str, float]]:
    """Fit one model, draw and score its samples, and measure the time."""
    model = bench.load(name)
    started = time.perf_counter()
    scorer = fit(
        model, model.data[:TRAINING], held_out=datasets.make(name, HELD_OUT, seed=1), subset=SUBSET,
        pairs=PAIRS, weighting=model.weighting, check=False, seed=seed,
        progress=bar(f"{name}: fitting", quiet),
    )  # fmt: skip
    fitted = time.perf_counter()
    steps = ddim(model.schedule, STEPS, clip=model.clip, use_clipped=False)  # as diffusers does
    result = scorer.sample(
        n, seed, steps=steps, batch_size=100, progress=bar(f"{name}: sampling and scoring", quiet)
    )
    sampled = time.perf_counter()
    return result, {"fit": round(fitted - started, 2), "sampling": round(sampled - fitted, 2)}


def _measure(result: Result, bad: Tensor, keep: float, seed: int) -> dict[str, float]:
    """The rates of bad samples before and after each filter."""
    kept, everything = result.keep(keep), torch.ones_like(bad)
    order = torch.randperm(len(bad), generator=torch.Generator().manual_seed(seed))
    shuffled = torch.zeros_like(kept).index_fill(0, order[: int(kept.sum())], True)
    masks = {"bad": everything, "bad_at_random": shuffled, "bad_among_kept": kept}
    return {name: float(bad[mask].double().mean()) for name, mask in masks.items()}


def _calibrate(result: Result, bad: Tensor) -> Calibration:
    """The guarantee from labels of the proposed samples; here the exact rule gives the labels."""
    labels = {row: bool(bad[row]) for row in result.propose_labels().tolist()}
    return calibrate(result, labels, RISK)


def _show(found: dict[str, dict[str, Any]], out: Path, keep: float) -> None:
    """Print one row per model, and where to look."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    heads = ("bad: all", f"random {keep:.0%}", f"best {keep:.0%}", "with sixty labels")
    for head in ("model", *heads):
        table.add_column(head)
    for name, own in found.items():
        rates = (f"{own[key]:.1%}" for key in ("bad", "bad_at_random", "bad_among_kept"))
        table.add_row(name, *rates, own["guarantee"])
    screen = console(stderr=False)
    screen.print(table)
    screen.print(f"Open {out / EXAMPLES['shapes'].page} in a browser, and label sixty samples yourself.")
    remark("next:", "flare fit shapes --out scorer")
