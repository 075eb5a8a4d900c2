"""`flare train`: a benchmark model into a run directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Quiet, Seed, Threads, app, bar, err, out, set_threads


@app.command()
def train(
    name: Annotated[str, typer.Argument(help="grid, sines, chirp or damped.")],
    directory: Annotated[Path, typer.Option("--out", help="The run directory to write.")],
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, if not the default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak rate.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of the averaged weights.")] = None,
    weighting: Annotated[str | None, typer.Option(help="min_snr or uniform.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    samples: Annotated[int | None, typer.Option(help="Size of the training set.")] = None,
    seed: Seed = 0,
    threads: Threads = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a benchmark model.

    Example: `flare train sines --out runs/sines --steps 5000`
    """
    from .. import zoo
    from ..checkpoint import save_json
    from ..training import STATE_FILE, Training, save_losses
    from ..training import train as run
    from ..zoo.models import CONFIG_FILE, WEIGHTS_FILE, read_config

    set_threads(threads)
    options: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "ema": ema,
        "weighting": weighting,
    }
    given = {key: value for key, value in options.items() if value is not None}
    config = zoo.configure(name, width=width, samples=samples, seed=seed, **given)

    net, schedule = zoo.build(config)
    training = Training(net, zoo.datasets.make(**config["dataset"]), schedule, zoo.train_config(config))

    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory with --out.")
    if directory.is_dir() and any(directory.iterdir()):
        if overwrite:
            if not (directory / CONFIG_FILE).is_file():
                raise FileExistsError(f"{directory} is not a run directory: it is not overwritten.")
            shutil.rmtree(directory)
        elif not resume:
            raise FileExistsError(f"{directory} exists already; add --resume or --overwrite.")
        elif (before := read_config(directory)) != config:
            other = sorted(key for key in config if before.get(key) != config[key])
            raise ValueError(
                f"{directory} is a run with other settings ({', '.join(other)}); "
                "resume it with its own, or use --overwrite."
            )
        elif (directory / WEIGHTS_FILE).is_file():
            out.print(f"{directory} is finished already.")
            return
    save_json(directory / CONFIG_FILE, config)

    draw = bar(f"training {name}", quiet, lambda frame: f"loss {frame.loss:.4f}")
    for _ in draw(run(training, directory)):
        pass
    save_losses(directory / "loss.csv", training.losses)
    zoo.save(directory, config, training.weights())
    (directory / STATE_FILE).unlink(missing_ok=True)
    if not quiet:
        tail = training.losses[-max(1, len(training.losses) // 20) :].mean()
        err.print(f"trained {name}: mean loss {tail:.4f} over the last 5% of the steps.")
    out.print(str(directory))
