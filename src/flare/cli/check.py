"""`flare check`: is first order enough for this posterior?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Data, Device, Json, ModelOption, Quiet, Run, Seed, Threads, app, one_bar, report, start


@app.command()
def check(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="How many samples.")] = 32,
    draws: Annotated[int, typer.Option(help="How many models to draw and rerun.")] = 32,
    posterior: Annotated[
        Path | None, typer.Option(help="The posterior; RUN/posterior.safetensors by default.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="trace, off_manifold, residual_variance, expected_residual; as flare sample by default."
        ),
    ] = None,
    sampler: Annotated[str, typer.Option(help="ddpm, ddim, dpmpp_2m or euler.")] = "ddpm",
    steps: Annotated[int | None, typer.Option(help="Network calls; all levels by default.")] = None,
    model: ModelOption = None,
    data: Data = None,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the score of the tangent rule with that of rerun models; exits with 3 if the ranking differs.

    Then a larger prior precision is looked for, at which the rankings agree.

    Example: `flare check runs/sines -n 32 --draws 32`
    """
    from .. import check_linearization
    from .runs import open_run

    start(threads)
    opened = open_run(run, model, data, device)
    table = opened.sampler(sampler, steps)
    fitted = opened.posterior(posterior)
    with one_bar("tangent and Monte Carlo", 2 * len(table), quiet or json) as progress:
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
    if json:  # which has no NaN
        facts |= {key: None for key, value in facts.items() if value != value}
    report(json, quiet, facts | ({"enough": found.enough, "verdict": verdict} if json else {}), last=verdict)
    if not found.trusted:
        raise typer.Exit(3)
