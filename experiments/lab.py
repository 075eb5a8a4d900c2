"""The laboratory: jobs whose results are kept on disk and found again, spread over the cores.

A job is a function of a configuration. Its result, numbers and tensors by name, is written whole under
the hash of both, of the library's version and of its defaults: a run that was stopped resumes, and a job
whose configuration or library is another runs again, so that a page describes the code that made it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flare
import flare.autodiff.finite_difference
import flare.core.defaults
from flare import checkpoint, zoo
from flare.network.training import Training, train
from flare.storage.locks import lock

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "reproduce"
Found = dict[str, Any]


def code() -> Found:
    """What results depend on besides their configuration: the library's version and its defaults."""
    return {
        "version": flare.__version__,
        "directions": flare.core.defaults.DIRECTIONS,
        "levels": flare.core.defaults.LEVELS,
        "endpoint levels": flare.core.defaults.ENDPOINT_LEVELS,
        "step of a secant": flare.autodiff.finite_difference.STEP,
        "rows per parameter": flare.curvature.ROWS_PER_PARAMETER,
    }


def digest(value: Any) -> str:
    """A short hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Job:
    """One thing to find out.

    Attributes:
        name: for people, and the first part of the file's name.
        run: a function at the top level of a module, called with the configuration as keywords.
        config: JSON values; a new value is a new result.
        stage: jobs of a stage start when those of earlier stages are done.
    """

    name: str
    run: Callable[..., Found]
    config: Mapping[str, Any] = field(default_factory=dict)
    stage: int = 1

    @property
    def path(self) -> Path:
        """Where the result is, or will be; the tensors stand beside it."""
        identity = [self.run.__module__, self.run.__name__, dict(self.config), code()]
        return RUNS / f"{self.name}-{digest(identity)}.json"

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self.path.is_file()

    def found(self) -> Found:
        """The result, read from disk."""
        figures = checkpoint.load_json(self.path)
        tensors = self.path.with_suffix(".safetensors")
        return {**figures, **(checkpoint.load(tensors)[0] if tensors.is_file() else {})}

    def execute(self) -> float:
        """Run and write; the seconds it took."""
        started = time.time()
        result = self.run(**self.config)
        tensors = {name: value for name, value in result.items() if isinstance(value, Tensor)}
        if tensors:
            checkpoint.save(self.path.with_suffix(".safetensors"), tensors)
        figures = {name: value for name, value in result.items() if name not in tensors}
        checkpoint.save_json(self.path, {**figures, "seconds": time.time() - started})
        return time.time() - started


def run(jobs: Sequence[Job], workers: int | None = None) -> None:
    """Run what is not done, stage by stage, each job in one thread of one of the workers."""
    with lock(RUNS):
        for stage in sorted({job.stage for job in jobs}):
            todo = [job for job in jobs if job.stage == stage and not job.done]
            if not todo:
                continue
            started = time.time()
            context = multiprocessing.get_context("spawn")
            os.environ["OMP_NUM_THREADS"] = "1"
            with ProcessPoolExecutor(workers or os.cpu_count(), context, _settle) as pool:
                waiting = {pool.submit(job.execute): job for job in todo}
                try:
                    for count, future in enumerate(as_completed(waiting), 1):
                        seconds = future.result()
                        print(
                            f"[{time.time() - started:6.0f} s] {count}/{len(todo)} {waiting[future].name} "
                            f"({seconds:.0f} s)",
                            file=sys.stderr,
                            flush=True,
                        )
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise


def _settle() -> None:
    """What a worker does first: take one thread, and end with the process that started it."""

    def follow() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    torch.set_num_threads(1)
    threading.Thread(target=follow, daemon=True).start()


def model_directory(config: Mapping[str, Any]) -> Path:
    """Where the model of a configuration is kept."""
    return RUNS / "models" / f"{config['dataset']['name']}-{digest(config)}"


def trained(config: Mapping[str, Any]) -> zoo.Model:
    """The model of a configuration: from disk, or trained now, going on where a stopped run was."""
    directory = model_directory(config)
    if not (directory / "model.safetensors").is_file():
        net, schedule = zoo.build(config)
        training = Training(net, zoo.datasets.make(**config["dataset"]), schedule, zoo.train_config(config))
        for _ in train(training, directory):
            pass
        zoo.save(directory, config, training.weights())
    return zoo.load(directory)


def train_job(config: Mapping[str, Any]) -> Found:
    """Train a model, so that later jobs find it."""
    trained(config)
    return {}


def training(config: Mapping[str, Any], label: str) -> Job:
    """The job that trains a model; it comes before all others."""
    return Job(f"train-{label}", train_job, {"config": dict(config)}, stage=0)


def pairs(model: zoo.Model, n: int = 20_000, seed: int = 0, weighting: str | None = None) -> Any:
    """Training pairs of a model, with the loss weights that it was trained with."""
    return flare.noising.pairs(
        model.data, model.schedule, n=n, seed=seed, weighting=weighting or model.weighting
    )


def kept(name: str, config: Mapping[str, Any], fit: Callable[[], Any], denoiser: flare.Denoiser) -> Any:
    """A posterior from disk, or fitted now and kept."""
    path = RUNS / "posteriors" / f"{name}-{digest([dict(config), code()])}.safetensors"
    if path.is_file():
        return flare.posteriors.load(path, denoiser)
    posterior = fit()
    posterior.save(path)
    return posterior


def calibrated(posterior: Any, denoiser: flare.Denoiser) -> Any:
    """The same curvature with s = N/σ² and δ by the marginal likelihood."""
    return flare.posteriors.tune(posterior.curvature, denoiser, "marglik", "calibrated")
