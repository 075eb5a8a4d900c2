"""`flare demo`: the shipped model at work, no download, no training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Quiet, Seed, Threads, app, bar, err, out, set_threads


@app.command()
def demo(
    directory: Annotated[Path, typer.Option("--out", help="Where to write the picture.")] = Path(
        "flare-demo"
    ),
    seed: Seed = 0,
    threads: Threads = 0,
    quiet: Quiet = False,
) -> None:
    """Sample 500 series from the shipped sines model and draw them beside the training data.

    Example: `flare demo --out flare-demo`
    """
    from .. import checkpoint, zoo
    from .. import sample as draw

    set_threads(threads)
    model = zoo.load("sines")
    result = draw(
        model.denoiser, model.steps, n=500, shape=model.shape, seed=seed,
        progress=bar("sampling 500 series", quiet),
    )  # fmt: skip
    checkpoint.save(directory / "samples.safetensors", {"samples": result.samples})
    picture = directory / "samples.png"
    _draw(picture, {"training data": model.data[:500], "samples": result.samples})
    if not quiet:
        err.print(f"500 series, {len(model.steps)} DDPM steps each; {picture} shows them.")
    out.print(str(picture))


def _draw(path: Path, panels: dict) -> None:  # type: ignore[type-arg]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from ..checkpoint import atomic

    figure, axes = plt.subplots(1, len(panels), figsize=(9, 3.2), sharey=True, layout="constrained")
    for ax, (title, series) in zip(axes, panels.items(), strict=True):
        ax.plot(series.T, color="#0072b2", alpha=0.06, linewidth=1)
        ax.set(title=f"{title} ({len(series)})", xlabel="time step")
    axes[0].set_ylabel("value")
    with atomic(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
    plt.close(figure)
