"""`flare score`: scores of samples that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.defaults import DIRECTIONS, REPEATS
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

PART = 1000  # samples scored at once


@app.command()
def score(
    run: Run,
    samples: Annotated[Path, typer.Option(help="The samples: npy, npz, safetensors, csv or parquet.")],
    posterior: Posterior = None,
    score: Annotated[
        str | None, typer.Option(help="trace or expected_residual; that of `flare sample` by default.")
    ] = None,
    levels: Levels = "",
    directions: Directions = DIRECTIONS,
    repeats: Annotated[int, typer.Option(min=1, help="Noise draws per level, for trace.")] = REPEATS,
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
    """Score samples that exist already, real data included, by the score that `flare sample` takes.

    Example: `flare score runs/sines --samples mine.npy --out scored.safetensors`
    """
    import torch

    from .. import __version__
    from .. import score as score_samples
    from ..core.distributed import broadcast
    from ..results.formats import check_suffix
    from ..results.result import Result
    from ..sampling.existing import default_score
    from ..sampling.options import draw_directions
    from .files import read_array
    from .parts import run_in_parts
    from .runs import open_run

    start(threads)
    check_suffix(file)
    opened = open_run(run, model, data, device)
    existing = read_array(samples)
    if tuple(existing.shape[1:]) != opened.shape:
        raise ValueError(
            f"{samples} has samples of shape {tuple(existing.shape[1:])}, the model's are {opened.shape}."
        )
    fitted = opened.posterior(posterior)
    D = broadcast(draw_directions(fitted, directions, seed))
    name = score or default_score(fitted)
    shares = parse_levels(levels)
    about = {"run": run, "samples": str(samples), "directions": directions, "seed": seed, "score": name}
    identity = {"repeats": repeats, "directions": D, "seed": seed, "samples": existing, "levels": shares}
    identity |= {"weights": opened.denoiser.fingerprint(), "schedule": opened.schedule, "score": name}
    identity["version"] = __version__
    facts: dict[str, Any] = {"scored": str(file), "n": len(existing), "score": name}

    def make(first: int, count: int, progress: Progress) -> Result:
        here = existing[first : first + count]
        (values,) = progress(
            score_samples(
                opened.denoiser, fitted, opened.schedule, here, score=name, levels=shares, directions=D,
                repeats=repeats, seed=seed, first=first,
            ) for _ in (first,)  # one thing for the bar to count
        )  # fmt: skip
        bad = (values.isnan().nonzero().flatten() + first).tolist()
        lost = {"lost": {f"the {name} of existing samples": bad}} if bad else {}
        return Result(here, scores={name: values.cpu()}, about={**about, **lost})

    def nothing(first: int, count: int) -> Result:
        scores = {name: torch.full((count,), torch.nan)}
        return Result(existing[first : first + count], scores=scores, about=about)

    def write(result: Result) -> None:
        quantiles = result.score.double().nanquantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
        facts.update(zip(("10%", "median", "90%"), quantiles.tolist(), strict=True))
        if lost := int(result.score.isnan().sum()):
            facts["lost"] = lost
        result.save(file)

    title = f"scoring by {opened.name}"
    run_in_parts(file, identity, len(existing), PART, make, nothing, write, title, 1, quiet or json)
    report(json, quiet, facts, last=str(file))
