"""The worker of `flare bench train`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from .. import bench
from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
from ..core.validation import require_positive_int
from ..network.training import STATE_FILE, Training, save_losses
from ..network.training import train as run
from ..storage.checkpoint import load_json, save_json
from .bars import bar
from .claims import claim
from .output import answer, remark

# the flags, by the keys of a configuration
FLAGS = {
    "dataset.name": "NAME", "dataset.n": "--samples", "dataset.seed": "--seed", "network.width": "--width",
    "training.steps": "--steps", "training.batch_size": "--batch-size", "training.seed": "--seed",
    "training.learning_rate": "--learning-rate", "training.ema": "--ema",
    "training.weighting": "--weighting", "training.level_sampling": "--level-sampling",
}  # fmt: skip


def train_benchmark(
    name: str,
    directory: Path,
    training: dict[str, Any],
    width: int | None,
    samples: int | None,
    threads: int,
    save_every: int,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Train a benchmark model into a run directory; `training` are fields of `TrainConfig`."""
    if threads:
        torch.set_num_threads(threads)
    if samples is not None:
        require_positive_int("--samples", samples)
    config = bench.configure(name, width=width, samples=samples, **training)
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory with --out.")
    net, schedule = bench.build(config)
    job = Training(net, bench.datasets.make(**config["dataset"]), schedule, bench.train_config(config))
    with claim(directory):
        if overwrite:
            _remove_run(directory)
        if _is_finished(directory, config):
            (directory / STATE_FILE).unlink(missing_ok=True)  # left by a kill after the weights were written
            answer(f"{directory} is finished already.")
            return
        save_json(directory / CONFIG_FILE, config)
        draw = bar(f"training {name}", quiet, lambda frame: f"loss {frame.loss:.4f}")
        for _ in draw(run(job, directory, save_every)):
            pass
        save_losses(directory / "loss.csv", job.losses)
        bench.save(directory, config, job.weights())
        (directory / STATE_FILE).unlink(missing_ok=True)
        if not quiet:
            tail = job.losses[-max(1, len(job.losses) // 20) :].mean()
            remark("", f"trained {name}: mean loss {tail:.4f} over the last 5% of the steps.")
        answer(str(directory))


def _remove_run(directory: Path) -> None:
    """Remove a run directory; refuse any other directory that is not empty."""
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
