"""`flare sample`: samples of a trained model into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Quiet, Run, Seed, Threads, app, bar, err, out, set_threads


@app.command()
def sample(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="How many samples.")] = 1000,
    sampler: Annotated[str, typer.Option(help="ddpm, ddim, dpmpp_2m or euler.")] = "ddpm",
    steps: Annotated[int | None, typer.Option(help="Network calls; all levels by default.")] = None,
    file: Annotated[Path, typer.Option("--out", help="A .safetensors file.")] = Path("samples.safetensors"),
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Samples that go through the network at once.")] = 1000,
    threads: Threads = 0,
    quiet: Quiet = False,
) -> None:
    """Sample from a trained model.

    Example: `flare sample sines -n 1000 --sampler ddim --steps 50 --out samples.safetensors`
    """
    from .. import checkpoint, zoo
    from .. import sample as draw

    set_threads(threads)
    model = zoo.load(run)
    table = model.sampler(sampler, steps)
    result = draw(
        model.denoiser, table, n=n, shape=model.shape, seed=seed, batch_size=batch_size,
        progress=bar(f"sampling {model.name}", quiet),
    )  # fmt: skip
    about = {"run": str(run), "sampler": table.name, "steps": len(table), "seed": seed}
    checkpoint.save(file, {"samples": result.samples}, about)
    if not quiet:
        err.print(f"{n:,} samples of {model.name}, {table.name} in {len(table)} steps, seed {seed}.")
    out.print(str(file))
