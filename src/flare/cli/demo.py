"""`flare demo`: the main job on the shipped models, no download, no training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Json, Keep, Quiet, Seed, Threads, answer, app, bar, console, start
from .app import report as say

NAMES = ("sines", "grid")


@app.command()
def demo(
    directory: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("flare-demo"),
    n: Annotated[int, typer.Option("-n", help="How many samples a model.")] = 1000,
    keep: Keep = 0.5,
    seed: Seed = 0,
    threads: Threads = 1,  # small networks: a second thread gains little, and crawls beside other work
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit, sample, score and filter the shipped sines and grid models, and write a report of each.

    Example: `flare demo --out flare-demo`
    """
    from rich.table import Table

    from ..report import write

    start(threads)
    table = Table(
        "model", "bad", "bad among kept", "random filter", "modes kept", "fit", "sampling", "scoring"
    )
    found: dict[str, Any] = {}
    for name in NAMES:
        facts, result, settings = _job(name, n, keep, seed, quiet or json)
        found[name] = facts
        seconds = {key: facts[f"{key}_seconds"] for key in ("fit", "sampling", "scoring")}
        result.save(directory / f"{name}.safetensors", **settings, **seconds)
        kept = facts.pop("mask")
        result.select(kept).save(directory / f"{name}-kept.safetensors", **settings)
        rates = [facts[key] for key in ("hallucinated", "after_the_filter", "after_a_random_filter")]
        write(
            directory / ("report.html" if name == NAMES[0] else f"report-{name}.html"),
            result,
            keep=keep,
            title=f"FLARE on {name}",
            settings=settings,
            timings={f"{key} (s)": f"{value:.1f}" for key, value in seconds.items()},
            summary=[
                ("Hallucination rate", f"{rates[0]:.2%}"),
                (f"After keeping {keep:.0%} by score", f"{rates[1]:.2%}"),
                (f"After keeping a random {keep:.0%}", f"{rates[2]:.2%}"),
            ],
        )
        modes = f"{facts['smallest_mode']:.0%} to {facts['largest_mode']:.0%}"
        spent = (f"{value:.1f} s" for value in seconds.values())
        table.add_row(name, *(f"{rate:.2%}" for rate in rates), modes, *spent)
    if json:
        say(True, quiet, found, last="")
        return
    if not quiet:
        console(stderr=True).print(table)
    answer(str(directory / "report.html"))


def _job(
    name: str, n: int, keep: float, seed: int, quiet: bool
) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Fit, sample and score one model: what was measured, the result, and how it was made."""
    import torch

    from .. import keep_fraction, posteriors, sample, zoo
    from ..diffusion import noising
    from ..evaluation import metrics, oracles
    from ..network import subsets

    model = zoo.load(name)
    clock = time.perf_counter()
    subset = subsets.random(model.denoiser, fraction=0.1, seed=seed)
    pairs = noising.pairs(model.data, model.schedule, n=10_000, seed=seed, weighting=model.weighting)
    posterior = posteriors.dense(
        model.denoiser, subset, pairs, "marglik", "calibrated", progress=bar(f"{name}: fitting", quiet)
    )
    fitted = time.perf_counter()
    arguments: dict[str, Any] = {"n": n, "shape": model.shape, "seed": seed}
    sample(model.denoiser, model.steps, **arguments, progress=bar(f"{name}: sampling", quiet))
    plain = time.perf_counter()
    # the expected residual, since keeping half by the trace drops whole modes (docs/reproduction.md)
    result = sample(
        model.denoiser, model.steps, posterior, **arguments,
        score=["expected_residual", "trace"],
        progress=bar(f"{name}: sampling with scores", quiet),
    )  # fmt: skip
    scored = time.perf_counter()
    bad = oracles.find_hallucinations(name, result.samples, model.data)
    kept = keep_fraction(result.score, keep)
    chance = keep_fraction(torch.rand(n, generator=torch.Generator().manual_seed(seed)), keep)
    shares = oracles.modes(name, result.samples[kept]).bincount() / kept.sum()
    facts = {
        "hallucinated": metrics.rate(bad),
        "after_the_filter": metrics.rate(bad, kept),
        "after_a_random_filter": metrics.rate(bad, chance),
        "smallest_mode": float(shares.min()),
        "largest_mode": float(shares.max()),
        "fit_seconds": round(fitted - clock, 2),
        "sampling_seconds": round(plain - fitted, 2),
        # what the scores cost beyond the sampling itself
        "scoring_seconds": round((scored - plain) - (plain - fitted), 2),
        "mask": kept,
    }
    chosen = f"random, {subset.size:,} of {model.denoiser.parameter_count:,}"
    settings = {"model": name, "subset": chosen, **result.about}
    return facts, result, settings
