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
    """Compare the tangent rule with rerun models; exits with 3 if the ranking cannot be trusted.

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
            opened.denoiser, table, fitted, n, opened.shape, draws=draws, seed=seed, progress=progress
        )
    facts = {"ratio": found.ratio, "correlation": found.correlation, "n": n, "draws": draws}
    report(json, quiet, facts | ({"verdict": found.verdict} if json else {}), last=found.verdict)
    if found.correlation < 0.9:
        raise typer.Exit(3)
