"""Jobs whose results are cached on disk, spread over the cores.

A job is a function and its configuration. Its result, numbers and tensors by name, is written atomically
under the hash of the function's name, the configuration, `MEASURES` and the library's defaults. A run that
was stopped resumes; a job whose configuration or library changed runs again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

import flare
from flare import bench
from tools.document import ROOT

from .files import load_json, load_tensors, save_json, save_tensors

RUNS = ROOT / "runs" / "reproduce"
Found = dict[str, Any]
#: the 13 noise levels of finished samples, as fractions of T
PROFILE_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: raised when the library changes what the studies measure; its version may rise without
MEASURES = "0.4.0"
#: the library's defaults that the kept results were computed with
DEFAULTS: Found = {
    "directions": 16,
    "levels": (0.05, 0.1, 0.2),
    "endpoint levels": (0.02, 0.05, 0.1),
    "levels of finished samples": PROFILE_LEVELS,
    "step of a secant": 8.0,
    "rows per parameter": 8,
}


def code() -> Found:
    """The part of a result's key that is not configuration: what the library measures, and its defaults."""
    return {"version": MEASURES, **DEFAULTS}


def digest(value: Any) -> str:
    """A short hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Job:
    """A function, its configuration and where the result is cached.

    Attributes:
        name: a label, and the first part of the file's name.
        run: a module-level function, called with the configuration as keywords.
        config: JSON values; another value is another result.
        stage: jobs of a stage start when all jobs of earlier stages are done.
    """

    name: str
    run: Callable[..., Found]
    config: Mapping[str, Any] = field(default_factory=dict)
    stage: int = 1

    @property
    def path(self) -> Path:
        """The file of the result; its tensors are in a file beside it."""
        # without the package, so that results of earlier layouts are found
        module = self.run.__module__.rpartition(".")[2]
        identity = [module, self.run.__name__, dict(self.config), code()]
        return RUNS / f"{self.name}-{digest(identity)}.json"

    @property
    def done(self) -> bool:
        """Whether the result is on disk."""
        return self.path.is_file()

    @property
    def files(self) -> list[Path]:
        """The files of a result that is done: its figures, and its tensors if it has any."""
        tensors = self.path.with_suffix(".safetensors")
        return [self.path, tensors] if tensors.is_file() else [self.path]

    def found(self) -> Found:
        """The result, read from disk."""
        figures = load_json(self.path)
        tensors = self.path.with_suffix(".safetensors")
        return {**figures, **(load_tensors(tensors) if tensors.is_file() else {})}

    def execute(self) -> float:
        """Run the function and write its result; returns the seconds it took."""
        started = time.time()
        result = self.run(**self.config)
        tensors = {name: value for name, value in result.items() if isinstance(value, Tensor)}
        if tensors:
            save_tensors(self.path.with_suffix(".safetensors"), tensors)
        figures = {name: value for name, value in result.items() if name not in tensors}
        save_json(self.path, {**figures, "seconds": time.time() - started})
        return time.time() - started


def unique(jobs: Iterable[Job]) -> list[Job]:
    """The jobs without those that share a result with an earlier one."""
    return list({job.path: job for job in jobs}.values())


def run(jobs: Sequence[Job], workers: int | None = None) -> None:
    """Run the jobs that are not done, stage by stage; every worker has one thread."""
    with locked(RUNS):
        for stage in sorted({job.stage for job in jobs}):
            todo = [job for job in jobs if job.stage == stage and not job.done]
            if todo:
                _run_stage(todo, workers)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory of results; an error if another process runs its jobs."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / ".lock", timeout=0.2):
            yield
    except Timeout:
        raise BlockingIOError(f"another process runs the jobs of {directory}; wait for it.") from None


def _run_stage(todo: Sequence[Job], workers: int | None) -> None:
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
    """Set up a worker: one thread, and it exits when the parent process does."""

    def follow() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    torch.set_num_threads(1)
    threading.Thread(target=follow, daemon=True).start()


def model_directory(config: Mapping[str, Any]) -> Path:
    """The directory of the model of a configuration."""
    return RUNS / "models" / f"{config['dataset']['name']}-{digest(config)}"


def load_or_train(config: Mapping[str, Any]) -> bench.Benchmark:
    """Load the model of a configuration, or train it; an interrupted training resumes."""
    directory = model_directory(config)
    if not (directory / "model.safetensors").is_file():
        net, schedule = bench.build(config)
        run = flare.training.Training(
            net, bench.datasets.make(**config["dataset"]), schedule, bench.train_config(config)
        )
        for _ in flare.training.train(run, directory):
            pass
        bench.save(directory, config, run.weights())
    return bench.load(directory)


def train_job(config: Mapping[str, Any]) -> Found:
    """Train a model for later jobs."""
    load_or_train(config)
    return {}


def training(config: Mapping[str, Any], label: str) -> Job:
    """The job that trains a model, in the first stage."""
    return Job(f"train-{label}", train_job, {"config": dict(config)}, stage=0)


def pairs(model: bench.Benchmark, n: int = 20_000, seed: int = 0, weighting: str | None = None) -> Any:
    """Training pairs of a model, weighted as in its own training unless `weighting` is given."""
    return flare.noising.pairs(
        model.data, model.schedule, n=n, seed=seed, weighting=weighting or model.weighting
    )


def load_or_fit(
    name: str, config: Mapping[str, Any], fit: Callable[[], Any], denoiser: flare.Denoiser
) -> Any:
    """Load the posterior of a configuration, or fit and save it."""
    path = RUNS / "posteriors" / f"{name}-{digest([dict(config), code()])}.safetensors"
    if path.is_file():
        return flare.posteriors.load(path, denoiser)
    posterior = fit()
    posterior.save(path)
    return posterior


def calibrate(posterior: Any, denoiser: flare.Denoiser) -> Any:
    """The same curvature with s = N/σ² and δ by the marginal likelihood."""
    return flare.posteriors.tune(posterior, denoiser, "marglik", "calibrated")
