"""Training in `flare bench`: benchmark models, and the hypernetwork of the baseline hyperdm."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from .. import bench
from ..bench import Benchmark
from ..bench.baselines import hyperdm
from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
from ..network.training import STATE_FILE, TrainConfig, Training, save_losses, train
from ..storage import checkpoint
from ..storage.resume import Resume
from .bars import bar
from .models_in import flatten
from .output import answer, remark
from .writing import claim

HYPERNETWORK = "hypernetwork.safetensors"
TRAIN_STEPS = 20_000  # optimizer steps of a hypernetwork
# the flags, by the keys of a configuration
FLAGS = {
    "dataset.name": "NAME", "dataset.n": "--samples", "dataset.seed": "--seed", "network.width": "--width",
    "training.steps": "--steps", "training.batch_size": "--batch-size", "training.seed": "--seed",
    "training.learning_rate": "--learning-rate", "training.ema": "--ema",
    "training.weighting": "--weighting", "training.level_sampling": "--level-sampling",
}  # fmt: skip


def train_benchmark(
    directory: Path, config: dict[str, Any], save_every: int, overwrite: bool, quiet: bool
) -> None:
    """Train the benchmark model of a configuration into a run directory, or resume its training."""
    name = config["dataset"]["name"]
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory with --out.")
    net, schedule = bench.build(config)
    job = Training(net, bench.datasets.make(**config["dataset"]), schedule, bench.train_config(config))
    with claim(directory):
        if _is_finished(directory, config, overwrite):
            (directory / STATE_FILE).unlink(missing_ok=True)  # left by a kill after the weights were written
            answer(f"{directory} is finished already.")
            return
        checkpoint.save_json(directory / CONFIG_FILE, config)
        _finish(f"training {name}", quiet, train(job, directory, save_every))
        save_losses(directory / "loss.csv", job.losses)
        bench.save(directory, config, job.weights())
        (directory / STATE_FILE).unlink(missing_ok=True)
        if not quiet:
            tail = job.losses[-max(1, len(job.losses) // 20) :].mean()
            remark("", f"trained {name}: mean loss {tail:.4f} over the last 5% of the steps.")
        answer(str(directory))


def load_or_train(
    model: Benchmark, run: str, file: Path | None, steps: int | None, seed: int, quiet: bool
) -> hyperdm.HyperNetwork:
    """Load the hypernetwork in a file; if there is none, train one on the data of the model and write it.

    Training starts from the weights of the model. The same command resumes it after an interruption.
    """
    if file is None:
        if not Path(run).is_dir():
            raise ValueError(
                f"{run} is a shipped model: name the file of its hypernetwork, to be read or written, with "
                "--hypernetwork FILE."
            )
        file = Path(run) / HYPERNETWORK
    denoiser = model.denoiser.to("cpu")
    structure = denoiser.fingerprint()["structure"]
    with claim(file):
        if file.is_file():
            _refuse_other(file, structure, steps)
            return hyperdm.load(file, denoiser.module)
        hyper = hyperdm.HyperNetwork(copy.deepcopy(denoiser.module), seed=seed).to(denoiser.dtype)
        config = TrainConfig(steps=steps or TRAIN_STEPS, weighting=model.weighting, seed=seed)
        data = model.data.to(denoiser.dtype)
        training = Training(hyper, data, model.schedule, config, denoiser.prediction)
        resume = Resume.beside(file)
        parts = resume.for_job(denoiser.fingerprint(), data, model.schedule, vars(config))
        _finish(f"training the hypernetwork of {model.name}", quiet, train(training, parts.directory))
        checkpoint.load_into(hyper, training.weights())
        resume.clear()
        hyperdm.save(file, hyper.eval(), steps=config.steps, structure=structure)
        if not quiet:
            remark("", f"wrote the hypernetwork to {file}.")
        return hyper


def _finish(title: str, quiet: bool, frames: Any) -> None:
    """Run a training to its end, with a bar that shows the loss."""
    for _ in bar(title, quiet, lambda frame: f"loss {frame.loss:.4f}")(frames):
        pass


def _refuse_other(file: Path, structure: str, steps: int | None) -> None:
    """Raise if the file belongs to another network or another number of steps."""
    found = checkpoint.metadata(file)
    if found.get("structure", structure) != structure:
        raise ValueError(f"{file} is the hypernetwork of another network; choose another --hypernetwork.")
    if steps is not None and found.get("steps", steps) != steps:
        raise ValueError(
            f"{file} was trained for {found['steps']} steps, not for {steps}. Leave out --train-steps to use "
            "it, or choose another --hypernetwork."
        )


def _is_finished(directory: Path, config: dict[str, Any], overwrite: bool) -> bool:
    """Whether a run with this configuration is finished; one with other settings is refused, or removed."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return False
    if not (directory / CONFIG_FILE).is_file():
        raise FileExistsError(f"{directory} is not a run directory, and not empty: choose another --out.")
    if overwrite:  # renamed first, so that a kill during the removal leaves no partial run
        old = directory.with_name(f".{directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
        shutil.rmtree(old)
        return False
    before, now = (flatten(each, ".") for each in (checkpoint.load_json(directory / CONFIG_FILE), config))
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
