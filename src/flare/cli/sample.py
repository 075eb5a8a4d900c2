"""`flare sample`: samples of a trained model, each with its scores, into a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..core.defaults import DIRECTIONS
from .app import (
    Data,
    Device,
    Directions,
    Json,
    Levels,
    ModelOption,
    Posterior,
    Quiet,
    Run,
    Seed,
    Threads,
    app,
    parse_levels,
    report,
    start,
)

if TYPE_CHECKING:
    from ..core.progress import Progress

PART = 500  # samples that are kept together


@app.command()
def sample(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="How many samples.")] = 1000,
    rule: Annotated[
        str,
        typer.Option(help="tangent, monte_carlo, decoupled, released, endpoint, or none for plain samples."),
    ] = "auto",
    directions: Directions = DIRECTIONS,
    derivative: Annotated[
        str, typer.Option(help="How they are pushed: secant, exact, compiled (for long runs), or auto.")
    ] = "auto",
    score: Annotated[
        str,
        typer.Option(help="trace, off_manifold, residual_variance, expected_residual; several with commas."),
    ] = "",
    levels: Levels = "",
    posterior: Posterior = None,
    sampler: Annotated[str, typer.Option(help="ddpm, ddim, dpmpp_2m or euler.")] = "ddpm",
    steps: Annotated[int | None, typer.Option(help="Network calls; all levels by default.")] = None,
    file: Annotated[Path, typer.Option("--out", help="A .safetensors, .npz or .csv file.")] = Path(
        "samples.safetensors"
    ),
    batch_size: Annotated[
        str,
        typer.Option(help="Samples that go through the network at once; auto for as many as fit in memory."),
    ] = str(PART),
    model: ModelOption = None,
    data: Data = None,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Sample from a trained model; with a posterior, every sample comes with its epistemic variance.

    Finished batches are kept beside the file: a run that was stopped goes on where it was.

    Example: `flare sample runs/sines -n 1000 --rule tangent --directions 16 --out samples.safetensors`
    """
    import torch

    from .. import __version__
    from .. import sample as draw
    from ..core.distributed import broadcast
    from ..core.validation import require_positive_int
    from ..results.formats import check_suffix
    from ..results.result import Result
    from ..sampling.options import draw_directions
    from .parts import run_in_parts
    from .runs import POSTERIOR_FILE, open_run

    start(threads)
    require_positive_int("n", n)
    size = _size(batch_size)
    check_suffix(file)
    opened = open_run(run, model, data, device)
    table = opened.sampler(sampler, steps)
    own = opened.directory / POSTERIOR_FILE if opened.directory else None
    if rule == "auto":
        rule = "tangent" if posterior or (own and own.is_file()) else "none"
    if rule == "none" and (score or levels):
        asked = f"--score {score}" if score else f"--levels {levels}"
        raise ValueError(
            f"{asked} needs a posterior: fit one (`flare fit {run}`) or name one with --posterior, "
            "and leave --rule none out. Without it, plain samples are drawn."
        )
    fitted = None if rule == "none" else opened.posterior(posterior)
    about: dict[str, Any] = {"run": run, "n": n, "seed": seed, "rule": rule}
    keywords: dict[str, Any] = {}
    if fitted is not None:
        scores = score.split(",") if score else None
        # once for all parts: a matrix-free posterior solves for them, all processes together
        D = broadcast(draw_directions(fitted, directions, seed))
        keywords = {"rule": rule, "directions": D, "score": scores, "derivative": derivative}
        if (shares := parse_levels(levels)) is not None:
            keywords["levels"] = about["levels"] = shares
        about |= {"directions": directions, "scores": scores}

    def make(first: int, count: int, progress: Progress) -> Result:
        return draw(
            opened.denoiser, table, fitted, n=count, shape=opened.shape, seed=seed, first=first,
            batch_size=size, progress=progress, **keywords,
        )  # fmt: skip

    def nothing(first: int, count: int) -> Result:
        return Result(torch.full((count, *opened.shape), torch.nan, dtype=opened.denoiser.dtype))

    def write(result: Result) -> None:
        about["seconds"] = round(time.perf_counter() - started, 2)
        if fitted is not None:
            about["scores"] = list(result.scores)
        about.update({**result.about, **about})
        result.save(file, **about)
        if lost := int(result.lost.sum()):
            about["lost"] = lost

    started = time.perf_counter()
    identity = about | {
        "table": table, "weights": opened.denoiser.fingerprint(), "directions": keywords.get("directions"),
        "derivative": derivative, "version": __version__,
    }  # fmt: skip
    title = f"sampling {opened.name}"
    part = PART if isinstance(size, str) else size  # what is kept together does not depend on the memory
    run_in_parts(file, identity, n, part, make, nothing, write, title, len(table), quiet or json)
    report(json, quiet, {"samples": str(file), **about}, last=str(file))


def _size(text: str) -> int | Literal["auto"]:
    """A batch size as it is typed."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--batch-size must be a number of at least 1, or auto, got {text!r}.")
    return int(text)
