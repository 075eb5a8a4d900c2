"""The loader that reads each kind of file, and what counts as a finding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import flare
from flare import posteriors, schedules
from flare.cli.samples_in import read_array
from flare.core.memory import is_out_of_memory
from flare.storage import checkpoint

from .seeds import SHAPE, network, training
from .watching import Finding

# the errors that a loader may raise; any other is a defect
EXPECTED = (ValueError, TypeError, OSError)


def load_posterior(path: Path) -> None:
    """A posterior that loads can be drawn from."""
    posterior = posteriors.load(path, denoiser=DENOISER, pairs=PAIRS)
    if isinstance(posterior, posteriors.MatrixFree):
        return  # a solve that does not converge is reported at the draw
    _check_orthonormal(posterior)
    draws = posterior.draw(2, torch.Generator().manual_seed(0))
    if draws.shape != (2, posterior.size) or not draws.isfinite().all():
        raise Finding(f"draws of shape {tuple(draws.shape)}, finite: {bool(draws.isfinite().all())}")


def _check_orthonormal(posterior: posteriors.Posterior) -> None:
    """All of QᵀQ, where the library tries a few vectors."""
    for name, Q in posterior.tensors().items():
        if Q.ndim == 2 and not (Q.T @ Q - torch.eye(Q.shape[1])).abs().max() < 1e-4:
            raise Finding(f"{name} is read, but its columns are not orthonormal")


def load_result(path: Path) -> None:
    """A result that loads can be selected from."""
    result = flare.Result.load(path)
    result.select(~result.lost)


def load_run(directory: Path) -> None:
    """A model that loads can be called."""
    model = flare.bench.load(directory)
    model.denoiser(torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long))
    len(model.sampler("ddpm"))
    if len(model.data) > 10**7:
        raise Finding("a data set larger than memory")


def load_scorer(directory: Path) -> None:
    """A scorer that loads prints, judges and draws samples."""
    scorer = flare.load(directory, DENOISER)
    repr(scorer)
    _check_orthonormal(scorer.posterior)
    training = scorer.training
    if "neighbors" in training.spaces:
        if training.rows.dtype != torch.int64 or training.rows.min() < 0:
            raise Finding(f"rows as {training.rows.dtype} from {training.rows.min()}")
        if not 0 <= training.copy_distance < float("inf"):
            raise Finding(f"a copy distance of {training.copy_distance}")
    for result in (scorer.score(torch.zeros(2, *SHAPE)), scorer.sample(2, steps=2)):
        p = result.p_value[~result.p_value.isnan()]
        if result.samples.shape != (2, *SHAPE) or not ((p > 0) & (p <= 1)).all():
            raise Finding(f"samples of shape {tuple(result.samples.shape)} with p-values {p.tolist()}")


def build(spec: Any) -> None:
    """A schedule that is made has finite tables."""
    schedule = schedules.build(spec)
    if not (schedule.alpha.isfinite().all() and schedule.sigma.isfinite().all()):
        raise Finding("a schedule that is not finite")


DENOISER, PAIRS = network(), training()
FILES: dict[str, Callable[[Path], object]] = {
    "posterior": load_posterior,
    "result": load_result,
    "array": read_array,
    "checkpoint": checkpoint.load,
    "json": checkpoint.load_json,
}


DIRECTORIES: dict[str, Callable[[Path], object]] = {"run": load_run, "scorer": load_scorer}


def load_with(kind: str, source: Path, home: Path, data: bytes) -> None:
    """Load a directory in which one file is replaced."""
    directory = home / kind
    shutil.copytree(source.parent, directory, dirs_exist_ok=True)
    (directory / source.name).write_bytes(data)
    DIRECTORIES[kind](directory)


def classify(call: Callable[[], object]) -> str:
    """Call a loader: `read`, or the name of its error; an unexpected error is a `Finding`."""
    try:
        call()
    except EXPECTED as error:
        if is_out_of_memory(error):
            raise Finding(f"memory was asked for: {error}") from error
        if not str(error).strip():
            raise Finding(f"{type(error).__name__} without a message") from error
        return type(error).__name__
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {str(error)[:300]}") from error
    return "read"
