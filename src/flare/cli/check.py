"""`flare check`: test whether first order is enough for a posterior."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .app import command, start
from .bars import Bar
from .output import show_facts


@command()
def check(
    run: options.Run,
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 32,
    draws: Annotated[int, typer.Option(help="Number of posterior draws to rerun.")] = 32,
    posterior: options.Posterior = None,
    score: Annotated[
        str | None, typer.Option(help="One of {scores}; by default the same as that of `flare sample`.")
    ] = None,
    sampler: options.Sampler = "ddpm",
    steps: options.Steps = None,
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare the score of the tangent rule with that of rerun models; exit with 3 if the rankings differ.

    If they differ, the command looks for a larger prior precision at which they agree.

    Example: `flare check runs/sines -n 32 --draws 32`
    """
    from .. import check_linearization
    from .runs import open_run

    start(threads)
    opened = open_run(run, model, data, device)
    table = opened.sampler(sampler, steps)
    fitted = opened.posterior(posterior)
    with Bar("tangent and Monte Carlo", 2 * len(table), quiet or json) as progress:
        found = check_linearization(
            opened.denoiser, table, fitted, n, opened.shape, score=score, draws=draws, seed=seed,
            progress=progress,
        )  # fmt: skip
    verdict = f"{found.finding} {found.advice('--prior ', '--rule monte_carlo')}".strip()
    facts = {
        "score": found.score,
        "ratio": found.ratio,
        "correlation": found.correlation,
        "trace_ratio": found.trace_ratio,
        "trace_correlation": found.trace_correlation,
        "n": n,
        "draws": draws,
        "prior": found.prior_precision,
    }
    if json:  # JSON has no NaN
        facts |= {key: None for key, value in facts.items() if value != value}
    show_facts(
        json, quiet, facts | ({"enough": found.enough, "verdict": verdict} if json else {}), last=verdict
    )
    if not found.trusted:
        raise typer.Exit(3)
