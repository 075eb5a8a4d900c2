"""`flare train`: a benchmark model, or a network of your own, into a run directory."""

from __future__ import annotations

import copy
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import Data, ModelOption, Quiet, Seed, Threads, answer, app, bar, claim, remark, start

# the options, by the keys of a configuration
OPTIONS = {
    "dataset.name": "NAME", "dataset.n": "--samples", "dataset.seed": "--seed", "network.width": "--width",
    "own.model": "--model", "own.data": "--data", "own.prediction": "--prediction",
    "own.weighting": "--weighting", "schedule.name": "--schedule", "schedule.T": "--levels",
    "training.steps": "--steps", "training.batch_size": "--batch-size", "training.seed": "--seed",
    "training.learning_rate": "--learning-rate", "training.ema": "--ema",
    "training.weighting": "--weighting",
}  # fmt: skip


@app.command()
def train(
    directory: Annotated[Path, typer.Option("--out", help="The run directory to write.")],
    name: Annotated[
        str | None, typer.Argument(help="grid, sines, chirp or damped; leave it out with --model.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, if not the default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak rate.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of the averaged weights.")] = None,
    weighting: Annotated[str | None, typer.Option(help="min_snr or uniform.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    samples: Annotated[int | None, typer.Option(help="Size of the training set.")] = None,
    model: ModelOption = None,
    data: Data = None,
    schedule: Annotated[
        str, typer.Option(help="With --model: cosine, linear, scaled_linear or flow.")
    ] = "cosine",
    levels: Annotated[int, typer.Option(help="With --model: the number of noise levels, T.")] = 1000,
    prediction: Annotated[str, typer.Option(help="With --model: epsilon, sample, v or flow.")] = "epsilon",
    seed: Seed = 0,
    threads: Threads = 0,
    save_every: Annotated[
        int, typer.Option(min=1, help="Steps after which the state is kept, to go on from.")
    ] = 2_000,
    resume: Annotated[  # for scripts that say it: an unfinished run is resumed in any case
        bool, typer.Option("--resume", hidden=True)
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a benchmark model, or a network of your own.

    A run that was stopped or killed is resumed by the same command.

    Example: `flare train sines --out runs/sines --steps 5000`

    Your own: `flare train --model package.module:function --data train.npy --out runs/mine --steps 20000`
    """
    from .. import zoo
    from ..network.training import STATE_FILE, TrainConfig, Training, save_losses
    from ..network.training import train as run
    from ..storage.checkpoint import save_json
    from ..zoo.models import CONFIG_FILE
    from .runs import configure_own

    start(threads)
    options: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "ema": ema,
        "weighting": weighting,
    }
    given = {key: value for key, value in options.items() if value is not None}
    if (name is None) == (model is None):
        raise ValueError(
            "give the name of a benchmark (grid, sines, chirp, damped) or --model, one of the two."
        )
    if name is not None:
        config = zoo.configure(name, width=width, samples=samples, seed=seed, **given)
        net, table = zoo.build(config)
        training = Training(net, zoo.datasets.make(**config["dataset"]), table, zoo.train_config(config))
    else:
        settings = TrainConfig(**{"steps": 20_000, "seed": seed, **given})
        config, denoiser, table, array = configure_own(
            str(model), data, schedule={"name": schedule, "T": levels}, prediction=prediction, clip=None,
            weighting=settings.weighting,
        )  # fmt: skip
        config["training"] = asdict(settings)
        own = copy.deepcopy(denoiser.module).requires_grad_(True)
        training = Training(own, array.to(denoiser.dtype), table, settings, denoiser.prediction)

    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory with --out.")
    with claim(directory):
        if overwrite:
            _remove_run(directory)
        if _is_finished(directory, config):
            (directory / STATE_FILE).unlink(missing_ok=True)
            answer(f"{directory} is finished already.")
            return
        save_json(directory / CONFIG_FILE, config)

        title = name or str(model)
        draw = bar(f"training {title}", quiet, lambda frame: f"loss {frame.loss:.4f}")
        for _ in draw(run(training, directory, save_every)):
            pass
        save_losses(directory / "loss.csv", training.losses)
        zoo.save(directory, config, training.weights())
        (directory / STATE_FILE).unlink(missing_ok=True)
        if not quiet:
            tail = training.losses[-max(1, len(training.losses) // 20) :].mean()
            remark("", f"trained {title}: mean loss {tail:.4f} over the last 5% of the steps.")
        answer(str(directory))


def _remove_run(directory: Path) -> None:
    """Remove a run directory, but nothing that is none."""
    from ..zoo.models import CONFIG_FILE

    if not directory.is_dir() or not any(directory.iterdir()):
        return
    if not (directory / CONFIG_FILE).is_file():
        raise FileExistsError(f"{directory} is not a run directory: it is not overwritten.")
    # out of the way at once, so that what is killed here leaves no half of a run
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    directory.rename(old)
    shutil.rmtree(old)


def _is_finished(directory: Path, config: dict[str, Any]) -> bool:
    """Whether the run of this configuration is done; a run of other settings is refused."""
    from ..storage.checkpoint import load_json
    from ..zoo.models import CONFIG_FILE, WEIGHTS_FILE

    if not directory.is_dir() or not any(directory.iterdir()):
        return False
    if not (directory / CONFIG_FILE).is_file():
        raise FileExistsError(f"{directory} is not a run directory, and not empty: choose another --out.")
    before, now = _flatten(load_json(directory / CONFIG_FILE)), _flatten(config)
    other = {
        OPTIONS.get(key, key): f"{before.get(key, 'not set')}, now {now.get(key, 'not set')}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    }
    if other:
        raise ValueError(
            f"{directory} is a run with other settings: "
            f"{'; '.join(f'{name} was {values}' for name, values in other.items())}. Give it those to resume "
            "it, choose another --out, or replace it with --overwrite."
        )
    return (directory / WEIGHTS_FILE).is_file()


def _flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a configuration by dotted keys."""
    if not isinstance(config, dict):
        return {prefix.removesuffix("."): config}
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flatten(value, f"{prefix}{key}.")
    return found
