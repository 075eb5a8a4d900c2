"""`flare fit`: a posterior over a subset of a run's parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import (
    Data,
    Device,
    Json,
    ModelOption,
    Quiet,
    Run,
    Seed,
    Threads,
    app,
    bar,
    claim,
    remark,
    report,
    start,
)

if TYPE_CHECKING:
    from ..network.denoiser import Denoiser
    from ..network.subsets import Subset
    from .runs import Run as OpenedRun

WORTH_TELLING = 1e12  # operations of a fit that are announced before it starts


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
        str | None,
        typer.Option(help="For a new run of --model: cosine (the default), linear, scaled_linear or flow."),
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(help="For a new run of --model: its number of noise levels, T; 1000 by default."),
    ] = None,
    prediction: Annotated[
        str | None, typer.Option(help="For a new run of --model: epsilon (the default), sample, v or flow.")
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="For a new run of --model: clip x̂0 to ±this; the data's range by default."),
    ] = None,
    weighting: Annotated[
        str | None,
        typer.Option(help="For a new run of --model: the loss weights of its training; uniform by default."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the configuration and posterior of a run of --model.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check that the model fits the data.")
    ] = True,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Laplace posterior to a trained network and its training data.

    The sums so far are kept beside the file: a fit that was stopped or killed goes on where it was. A model
    that does not fit the data is warned of, with the likely cause.

    Example: `flare fit runs/sines --subset random --fraction 0.1 --structure dense --prior marglik`

    Your own network: `flare fit runs/mine --model package.module:function --data train.npy --levels 1000`
    """
    from .. import posteriors
    from ..core.distributed import is_main, wait
    from ..storage.resume import Resume
    from .runs import POSTERIOR_FILE, open_run, prepare_own, refuse_other_settings

    start(threads)
    # before anything is written
    posteriors.STRUCTURES.find(structure)
    delta = _parse_number("--prior", prior, ("marglik", "validation"))
    factor = _parse_number("--scale", scale, ("calibrated",))
    directory, new = Path(run), False
    flags: dict[str, Any] = {"schedule": schedule, "levels": levels, "prediction": prediction}
    flags |= {"clip": clip, "weighting": weighting}
    if overwrite and model is None:
        raise ValueError(
            "--overwrite replaces the configuration of a network of your own: name it with --model."
        )
    if model is not None:
        with claim(directory):
            new = is_main() and prepare_own(directory, model, data, flags, overwrite)
        wait()
    opened = open_run(run, model, data, device)
    refuse_other_settings(opened, model, data, flags)
    if new and not (quiet or json):
        said = ", ".join(f"{key} {value}" for key, value in opened.settings.items() if key != "time")
        remark("new run:", f"{said}. The network receives {opened.settings['time']}.")
    if file is None:
        if opened.directory is None:
            raise ValueError(f"{run} is a shipped model: say where to write the posterior with --out FILE.")
        file = opened.directory / POSTERIOR_FILE
    denoiser = opened.denoiser
    chosen = _choose_subset(denoiser, subset, fraction, count, seed)
    if structure == "dense":
        _announce_cost(chosen.size, pairs, opened, quiet or json)
    options: dict[str, Any] = {"rank": min(rank, chosen.size)} if structure == "low_rank" else {}
    given = {"prior_precision": delta, "scale": factor}
    options |= {key: value for key, value in given.items() if value is not None}
    if prior == "validation":
        options["validation"] = opened.pairs(max(100, pairs // 20), seed + 1)
    found = _check(opened, seed) if check and is_main() else {}
    with claim(file):
        resume = Resume.beside(file, save_every)
        posterior = getattr(posteriors, structure)(
            denoiser, chosen, opened.pairs(pairs, seed), **options, resume=resume,
            progress=bar(f"fitting {chosen.size:,} parameters", quiet or json),
        )  # fmt: skip
        if is_main():
            posterior.save(file, drawn={"n": pairs, "seed": seed})
            resume.clear()
    facts: dict[str, Any] = {
        "posterior": str(file),
        "structure": structure,
        "parameters": posterior.size,
        "of": denoiser.parameter_count,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
        "residual_variance": posterior.origin.statistics.residual_variance,
    }
    report(json, quiet, facts | ({"settings": opened.settings} | found if json else {}), last=str(file))


def _choose_subset(denoiser: Denoiser, subset: str, fraction: float, count: int | None, seed: int) -> Subset:
    from ..network import subsets

    if subset == "random":
        share: dict[str, Any] = {"count": count} if count is not None else {"fraction": fraction}
        return subsets.random(denoiser, **share, seed=seed)
    if subset in ("last_layer", "everything"):
        return getattr(subsets, subset)(denoiser)
    return subsets.named(denoiser, subset.split(","))


def _check(opened: OpenedRun, seed: int) -> dict[str, Any]:
    """Check that the model fits the data, and warn of what is wrong."""
    from .. import check_model
    from ..sampling.model_check import STEPS

    schedule = opened.schedule
    table = None
    if schedule.continuous or schedule.variance_preserving:
        table = opened.sampler("euler" if schedule.continuous else "ddim", min(STEPS, schedule.T))
    found = check_model(opened.denoiser, opened.data, schedule, steps=table, seed=seed)
    for problem in found.problems:
        remark("[yellow]warning:[/yellow]", problem)
    return {"model_check": found.facts}


def _announce_cost(m: int, pairs: int, opened: OpenedRun, quiet: bool) -> None:
    """Say what a large dense fit costs before it starts; refuse one that does not fit the memory."""
    import torch

    from ..core.batch_size import free_memory

    told, operations = estimate_dense(m, pairs, math.prod(opened.shape), free_memory(torch.device("cpu")))
    if operations > WORTH_TELLING and not quiet:
        remark("", told)


def estimate_dense(m: int, pairs: int, d: int, memory: int) -> tuple[str, float]:
    """What a dense fit of m parameters costs, in words, and its operations.

    Args:
        m: the number of uncertain parameters.
        pairs: the number of training pairs.
        d: the numbers of a sample.
        memory: the bytes that are free.
    """
    from ..posteriors.curvature import probe_count

    rows = pairs * (probe_count("auto", pairs, m, d) or d)
    needed = 3 * 8 * m**2  # H, its eigenvectors and the workspace, float64
    operations = 2.0 * rows * m**2 + 10.0 * m**3  # JᵀJ, and the eigendecomposition
    told = (
        f"dense over {m:,} parameters needs about {needed / 1e9:.3g} GB and {operations:.1g} operations"
        f" ({rows:,} rows of JᵀJ, and an eigendecomposition)"
    )
    ways = "--structure low_rank or diagonal, or fewer parameters with --subset random --fraction"
    if needed > memory:
        raise ValueError(f"{told}, but {memory / 1e9:.3g} GB are free. Use {ways}.")
    return f"{told}. Cheaper: {ways}.", operations


def _parse_number(option: str, text: str, words: Sequence[str]) -> float | str | None:
    """A positive number or one of some words as they are typed; None if nothing is."""
    if text in ("", *words):
        return text or None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        allowed = " or ".join(["a positive number", *(repr(word) for word in words)])
        raise ValueError(f"{option} must be {allowed}, got {text!r}.")
    return value
