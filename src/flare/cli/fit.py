"""`flare fit`: a posterior over a subset of a run's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Data, Device, Json, ModelOption, Quiet, Run, Seed, Threads, app, bar, claimed, report, start


@app.command()
def fit(
    run: Run,
    subset: Annotated[
        str, typer.Option(help="random, last_layer, everything, or patterns of names such as 'out.*'.")
    ] = "random",
    fraction: Annotated[float, typer.Option(help="Share of the parameters, for random.")] = 0.1,
    count: Annotated[int | None, typer.Option(help="Or how many of them.")] = None,
    structure: Annotated[
        str, typer.Option(help="dense, diagonal, low_rank, kronecker or matrix_free.")
    ] = "dense",
    prior: Annotated[str, typer.Option(help="Prior precision: a number, marglik or validation.")] = "",
    scale: Annotated[str, typer.Option(help="A number, or calibrated for N/σ².")] = "",
    rank: Annotated[int, typer.Option(help="Eigenpairs, for low_rank.")] = 64,
    pairs: Annotated[int, typer.Option(help="Training pairs for the curvature.")] = 20_000,
    file: Annotated[Path | None, typer.Option("--out", help="RUN/posterior.safetensors by default.")] = None,
    save_every: Annotated[
        float, typer.Option(min=0, help="Seconds after which the sums so far are kept, to go on from.")
    ] = 30.0,
    model: ModelOption = None,
    data: Data = None,
    schedule: Annotated[
        str, typer.Option(help="For a new run of --model: cosine, linear, scaled_linear or flow.")
    ] = "cosine",
    levels: Annotated[
        int, typer.Option(help="For a new run of --model: its number of noise levels, T.")
    ] = 1000,
    prediction: Annotated[
        str, typer.Option(help="For a new run of --model: epsilon, sample, v or flow.")
    ] = "epsilon",
    clip: Annotated[
        float | None,
        typer.Option(help="For a new run of --model: clip x̂0 to ±this; the data's range by default."),
    ] = None,
    weighting: Annotated[
        str, typer.Option(help="For a new run of --model: the loss weights of its training.")
    ] = "uniform",
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Laplace posterior to a trained network and its training data.

    The sums so far are kept beside the file: a fit that was stopped or killed goes on where it was.

    Example: `flare fit runs/sines --subset random --fraction 0.1 --structure dense --prior marglik`

    Your own network: `flare fit runs/mine --model package.module:function --data train.npy --levels 1000`
    """
    from .. import posteriors, subsets
    from ..checkpoint import save_json
    from ..checks import one_of
    from ..distributed import is_main, wait
    from ..shards import Shards
    from ..zoo.models import CONFIG_FILE
    from .runs import POSTERIOR_FILE, configure_own, open_run

    start(threads)
    directory = Path(run)
    if model is not None:
        with claimed(directory):
            if is_main() and not (directory / CONFIG_FILE).is_file():
                config, *_ = configure_own(
                    model, data, schedule={"name": schedule, "T": levels}, prediction=prediction, clip=clip,
                    weighting=weighting,
                )  # fmt: skip
                save_json(directory / CONFIG_FILE, config)
        wait()
    opened = open_run(run, model, data, device)
    if file is None:
        if opened.directory is None:
            raise ValueError(f"{run} is a shipped model: say where to write the posterior with --out FILE.")
        file = opened.directory / POSTERIOR_FILE
    one_of("structure", structure, [*posteriors.Posterior.structures])
    denoiser = opened.denoiser
    if subset == "random":
        share: dict[str, Any] = {"count": count} if count is not None else {"fraction": fraction}
        chosen = subsets.random(denoiser, **share, seed=seed)
    elif subset in ("last_layer", "everything"):
        chosen = getattr(subsets, subset)(denoiser)
    else:
        chosen = subsets.named(denoiser, subset.split(","))
    options: dict[str, Any] = {"rank": min(rank, chosen.size)} if structure == "low_rank" else {}
    options |= {key: _number(text) for key, text in (("prior_precision", prior), ("scale", scale)) if text}
    if prior == "validation":
        options["validation"] = opened.pairs(max(100, pairs // 20), seed + 1)
    with claimed(file):
        keep = Shards.beside(file, save_every)
        posterior = getattr(posteriors, structure)(
            denoiser, chosen, opened.pairs(pairs, seed), **options, keep=keep,
            progress=bar(f"fitting {chosen.size:,} parameters", quiet or json),
        )  # fmt: skip
        if is_main():
            posterior.save(file, drawn={"n": pairs, "seed": seed})
            keep.clear()
    statistics = posterior.origin.statistics
    report(
        json,
        quiet,
        {
            "posterior": str(file),
            "structure": structure,
            "parameters": posterior.size,
            "of": denoiser.parameter_count,
            "prior_precision": posterior.prior_precision,
            "scale": posterior.scale,
            "residual_variance": statistics.residual_variance,
        },
        last=str(file),
    )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
