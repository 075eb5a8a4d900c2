"""The hypernetwork of HyperDM: loaded from a file, or trained into it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from .bars import bar
from .claims import claim
from .output import remark

if TYPE_CHECKING:
    from ..bench.baselines.hyperdm import HyperNetwork
    from .runs import Run

STEPS = 20_000  # optimizer steps
FILE = "hypernetwork.safetensors"


def choose_file(opened: Run, given: Path | None) -> Path:
    """The given file, or that of the run directory."""
    if given is not None:
        return given
    if opened.directory is None:
        raise ValueError(
            f"{opened.name} is a shipped model: say where its hypernetwork is, or is to be written, with "
            "--hypernetwork FILE."
        )
    return opened.directory / FILE


def load_or_train(opened: Run, file: Path, steps: int | None, seed: int, quiet: bool) -> HyperNetwork:
    """Load the hypernetwork in a file; if there is none, train one on the data of the run and write it.

    Training starts from the weights of the run. The same command resumes it after an interruption.

    Args:
        opened: the run.
        file: of the hypernetwork.
        steps: optimizer steps; None for those of the file, or 20,000.
        seed: of the training.
        quiet: whether to print no bar and no remarks.
    """
    from ..bench.baselines import hyperdm
    from ..core.validation import require_positive_int

    if steps is not None:
        require_positive_int("--train-steps", steps)
    denoiser = opened.denoiser.to("cpu")
    structure = denoiser.fingerprint()["structure"]
    with claim(file):
        if file.is_file():
            _refuse_other(file, structure, steps)
            return hyperdm.load(file, denoiser.module)
        hyper = _train(opened, file, steps or STEPS, seed, quiet)
        hyperdm.save(file, hyper, steps=steps or STEPS, structure=structure)
        if not quiet:
            remark("", f"wrote the hypernetwork to {file}.")
        return hyper


def _refuse_other(file: Path, structure: str, steps: int | None) -> None:
    """Raise if the file belongs to another network or another number of steps."""
    from ..storage import checkpoint

    found = checkpoint.metadata(file)
    if found.get("structure", structure) != structure:
        raise ValueError(f"{file} is the hypernetwork of another network; choose another --hypernetwork.")
    if steps is not None and found.get("steps", steps) != steps:
        raise ValueError(
            f"{file} was trained for {found['steps']} steps, not for {steps}. Leave out --train-steps to use "
            "it, or choose another --hypernetwork."
        )


def _train(opened: Run, file: Path, steps: int, seed: int, quiet: bool) -> HyperNetwork:
    """Train to the end, from the last checkpoint if there is one."""
    from ..bench.baselines.hyperdm import HyperNetwork
    from ..network.training import TrainConfig, Training, train
    from ..storage.checkpoint import load_into
    from ..storage.resume import Resume

    denoiser = opened.denoiser.to("cpu")
    hyper = HyperNetwork(copy.deepcopy(denoiser.module), seed=seed).to(denoiser.dtype)
    config = TrainConfig(steps=steps, weighting=opened.weighting, seed=seed)
    data = opened.data.to(denoiser.dtype)
    training = Training(hyper, data, opened.schedule, config, denoiser.prediction)
    resume = Resume.beside(file)
    parts = resume.for_job(denoiser.fingerprint(), data, opened.schedule, vars(config))
    draw = bar(f"training the hypernetwork of {opened.name}", quiet, lambda frame: f"loss {frame.loss:.4f}")
    for _ in draw(train(training, parts.directory)):
        pass
    load_into(hyper, training.weights())
    resume.clear()
    return hyper.eval()
