"""`flare train`: train a benchmark model, or your own network, into a run directory."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command, start
from .bars import bar
from .claims import claim
from .named import parse_schedule
from .output import answer, remark
from .own_runs import DEFAULTS

if TYPE_CHECKING:
    from ..network.training import Training

STEPS = 20_000  # optimizer steps for your own network
# the flags, by the keys of a configuration
FLAGS = {
    "dataset.name": "NAME", "dataset.n": "--samples", "dataset.seed": "--seed", "network.width": "--width",
    "own.model": "--model", "own.data": "--data", "own.prediction": "--prediction",
    "own.weighting": "--weighting", "schedule.name": "--schedule", "schedule.T": "--levels",
    "training.steps": "--steps", "training.batch_size": "--batch-size", "training.seed": "--seed",
    "training.learning_rate": "--learning-rate", "training.ema": "--ema",
    "training.weighting": "--weighting", "training.level_sampling": "--level-sampling",
}  # fmt: skip


@command()
def train(
    directory: Annotated[Path, typer.Option("--out", help="The run directory to write.")],
    name: Annotated[
        str | None, typer.Argument(help="A benchmark: {models}; leave it out with --model.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Training pairs per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    ema: Annotated[
        float | None, typer.Option(help="Decay of the averaged weights, usually 0.999 to 0.9999.")
    ] = None,
    weighting: Annotated[str | None, typer.Option(help="Loss weights: one of {weightings}.")] = None,
    level_sampling: Annotated[
        str | None,
        typer.Option(help="How noise levels are drawn: one of {level_samplings}; log_snr favors SNR = 1."),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    samples: Annotated[int | None, typer.Option(help="Size of the training set.")] = None,
    model: options.Model = None,
    data: options.Data = None,
    schedule: Annotated[
        str, typer.Option(help="With --model: one of {schedules}, with options as in `flare fit`.")
    ] = DEFAULTS["schedule"],
    levels: Annotated[int, typer.Option(help="With --model: the number of noise levels, T.")] = DEFAULTS[
        "levels"
    ],
    prediction: Annotated[str, typer.Option(help="With --model: one of {predictions}.")] = DEFAULTS[
        "prediction"
    ],
    seed: options.Seed = 0,
    threads: options.Threads = 0,
    save_every: Annotated[
        int, typer.Option(min=1, help="Steps between two checkpoints, from which training is resumed.")
    ] = 2_000,
    resume: Annotated[  # accepted for scripts: an unfinished run is resumed in any case
        bool, typer.Option("--resume", hidden=True)
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a benchmark model, or your own network.

    The same command resumes a run that was stopped or killed.

    Example: `flare train sines --out runs/sines --steps 5000`

    Your own: `flare train --model package.module:function --data train.npy --out runs/mine --steps 20000`
    """
    from .. import bench
    from ..core.validation import require_positive_int
    from ..network.training import STATE_FILE

    start(threads)
    given: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "ema": ema,
        "weighting": weighting,
        "level_sampling": level_sampling,
    }
    training_options = {key: value for key, value in given.items() if value is not None}
    if (name is None) == (model is None):
        raise ValueError(
            f"give the name of a benchmark ({', '.join(bench.NAMES)}) or --model, one of the two."
        )
    if samples is not None:
        require_positive_int("--samples", samples)
    if name is not None:
        config = bench.configure(name, width=width, samples=samples, seed=seed, **training_options)
        training = _prepare_benchmark(config)
    else:
        table = parse_schedule(schedule, levels)
        config, training = _prepare_own(
            str(model), data, table, prediction, {"seed": seed, **training_options}
        )
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory with --out.")
    with claim(directory):
        if overwrite:
            _remove_run(directory)
        if _is_finished(directory, config):
            (directory / STATE_FILE).unlink(missing_ok=True)  # left by a kill after the weights were written
            answer(f"{directory} is finished already.")
            return
        _run_training(directory, config, training, save_every, quiet)
        if not quiet:
            tail = training.losses[-max(1, len(training.losses) // 20) :].mean()
            remark("", f"trained {name or model}: mean loss {tail:.4f} over the last 5% of the steps.")
        answer(str(directory))


def _prepare_benchmark(config: dict[str, Any]) -> Training:
    from .. import bench
    from ..network.training import Training

    net, schedule = bench.build(config)
    return Training(net, bench.datasets.make(**config["dataset"]), schedule, bench.train_config(config))


def _prepare_own(
    model: str, data: Path | None, schedule: dict[str, Any], prediction: str, given: dict[str, Any]
) -> tuple[dict[str, Any], Training]:
    """Make the configuration and the training of the user's own network; `given` are training options."""
    from ..network.training import TrainConfig, Training
    from .own_runs import configure_own

    settings = TrainConfig(**{"steps": STEPS, **given})
    config, denoiser, table, array = configure_own(
        model, data, schedule=schedule, prediction=prediction, clip=None, weighting=settings.weighting
    )
    config["training"] = settings.describe()
    net = copy.deepcopy(denoiser.module).requires_grad_(True)
    return config, Training(net, array.to(denoiser.dtype), table, settings, denoiser.prediction)


def _run_training(
    directory: Path, config: dict[str, Any], training: Training, save_every: int, quiet: bool
) -> None:
    """Train to the end, from the last checkpoint if there is one, and write the run."""
    from .. import bench
    from ..bench.shipped import CONFIG_FILE
    from ..network.training import STATE_FILE, save_losses
    from ..network.training import train as run
    from ..storage.checkpoint import save_json

    save_json(directory / CONFIG_FILE, config)
    title = config["own"]["model"] if "own" in config else config["dataset"]["name"]
    draw = bar(f"training {title}", quiet, lambda frame: f"loss {frame.loss:.4f}")
    for _ in draw(run(training, directory, save_every)):
        pass
    save_losses(directory / "loss.csv", training.losses)
    bench.save(directory, config, training.weights())
    (directory / STATE_FILE).unlink(missing_ok=True)


def _remove_run(directory: Path) -> None:
    """Remove a run directory; refuse any other directory that is not empty."""
    from ..bench.shipped import CONFIG_FILE

    if not directory.is_dir() or not any(directory.iterdir()):
        return
    if not (directory / CONFIG_FILE).is_file():
        raise FileExistsError(f"{directory} is not a run directory: --overwrite does not remove it.")
    # renamed first, so that a kill during the removal leaves no partial run
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    directory.rename(old)
    shutil.rmtree(old)


def _is_finished(directory: Path, config: dict[str, Any]) -> bool:
    """Whether a run with this configuration is finished; a run with other settings is refused."""
    from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
    from ..storage.checkpoint import load_json

    if not directory.is_dir() or not any(directory.iterdir()):
        return False
    if not (directory / CONFIG_FILE).is_file():
        raise FileExistsError(f"{directory} is not a run directory, and not empty: choose another --out.")
    before, now = _flatten(load_json(directory / CONFIG_FILE)), _flatten(config)
    other = {
        FLAGS.get(key, key): f"{before.get(key, 'not set')}, now {now.get(key, 'not set')}"
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
