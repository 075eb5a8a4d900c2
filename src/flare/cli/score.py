"""`flare score`: scores of samples that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Data, Device, Json, ModelOption, Quiet, Run, Seed, Threads, app, report, set_threads


@app.command()
def score(
    run: Run,
    samples: Annotated[Path, typer.Option(help="The samples: npy, npz, safetensors, csv or parquet.")],
    posterior: Annotated[
        Path | None, typer.Option(help="The posterior; RUN/posterior.safetensors by default.")
    ] = None,
    directions: Annotated[int, typer.Option(help="Draws of the posterior to push through.")] = 8,
    repeats: Annotated[int, typer.Option(help="Noises a level.")] = 4,
    file: Annotated[Path, typer.Option("--out", help="A .safetensors, .npz or .csv file.")] = Path(
        "scored.safetensors"
    ),
    model: ModelOption = None,
    data: Data = None,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score samples that exist already, real data included, by re-noising them a little.

    Example: `flare score runs/sines --samples mine.npy --out scored.safetensors`
    """
    from .. import score as score_samples
    from ..results import Result
    from .files import read_array, write_result
    from .runs import open_run

    set_threads(threads)
    opened = open_run(run, model, data, device)
    existing = read_array(samples)
    if tuple(existing.shape[1:]) != opened.shape:
        raise ValueError(
            f"{samples} has samples of shape {tuple(existing.shape[1:])}, the model's are {opened.shape}."
        )
    fitted = opened.posterior(posterior)
    values = score_samples(
        opened.denoiser, fitted, opened.schedule, existing, directions=directions, repeats=repeats, seed=seed
    )
    about = {"run": run, "samples": str(samples), "rule": "endpoint", "directions": directions, "seed": seed}
    write_result(file, Result(existing, scores={"endpoint": values.cpu()}, about=about))
    quantiles = values.double().nanquantile(values.new_tensor([0.1, 0.5, 0.9]).double()).tolist()
    facts = {
        "scored": str(file),
        "n": len(existing),
        **dict(zip(("10%", "median", "90%"), quantiles, strict=True)),
    }
    report(json, quiet, facts, last=str(file))
