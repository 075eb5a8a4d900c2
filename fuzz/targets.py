"""What is called with each file, and what counts as a finding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import flare
from flare import checkpoint, posteriors, schedules
from flare.cli.files import read_array
from flare.core.batch_size import is_out_of_memory

from .seeds import network, training
from .watching import Finding

# what the loaders may say: anything else is a defect of theirs
EXPECTED = (ValueError, TypeError, OSError)


def load_posterior(path: Path) -> None:
    """A posterior that loads can be drawn from."""
    posterior = posteriors.load(path, denoiser=DENOISER, pairs=PAIRS)
    if isinstance(posterior, posteriors.MatrixFree):
        return  # a solve that does not converge is told at the draw
    draws = posterior.draw(2, torch.Generator().manual_seed(0))
    if draws.shape != (2, posterior.size) or not draws.isfinite().all():
        raise Finding(f"draws of shape {tuple(draws.shape)}, finite: {bool(draws.isfinite().all())}")


def load_result(path: Path) -> None:
    """A result that loads can be selected from."""
    result = flare.Result.load(path)
    result.select(~result.lost)


def load_run(directory: Path) -> None:
    """A model that loads can be called."""
    model = flare.zoo.load(directory)
    model.denoiser(torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long))
    len(model.steps)
    if len(model.data) > 10**7:
        raise Finding("a data set larger than memory")


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


def run_with(source: Path, path: Path, data: bytes) -> None:
    """A run directory in which one file is another."""
    directory = path.parent / "run"
    shutil.copytree(source.parent, directory, dirs_exist_ok=True)
    (directory / source.name).write_bytes(data)
    load_run(directory)


def held(call: Callable[[], object]) -> str:
    """Call a target: `read`, or the kind of error that refused; what is not expected is a `Finding`."""
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
