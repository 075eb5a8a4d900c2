"""A run as the commands see it: a network with its schedule, data and settings, from wherever it comes.

Code is run only where the user names it on the command line, with --model package.module:function; a
configuration file that mentions one is not enough.
"""

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..denoiser import Denoiser
    from ..noising import Pairs
    from ..posteriors import Posterior
    from ..samplers import Steps
    from ..schedules import Schedule

POSTERIOR_FILE = "posterior.safetensors"
FORMAT = 1


@dataclass
class Run:
    """What a command works on.

    Attributes:
        name: for titles: the model, or the last part of the directory.
        denoiser: the network.
        schedule: the noise levels.
        shape: of one sample.
        clip: the range of x̂0, or None.
        weighting: the loss weights of its training.
        data: the training data, (n, *shape).
        directory: where its files are; None for a shipped model.
    """

    name: str
    denoiser: Denoiser
    schedule: Schedule
    shape: tuple[int, ...]
    clip: float | None
    weighting: str
    data: Tensor
    directory: Path | None

    def sampler(self, name: str, n: int | None) -> Steps:
        """A sampler's table by name, with this run's schedule and clip."""
        from ..checks import one_of
        from ..samplers import SAMPLERS

        return SAMPLERS[one_of("sampler", name, SAMPLERS)](self.schedule, n, clip=self.clip)

    def pairs(self, n: int, seed: int) -> Pairs:
        """Training pairs of this run."""
        from .. import noising

        return noising.pairs(self.data, self.schedule, n=n, seed=seed, weighting=self.weighting)

    def posterior(self, path: Path | None) -> Posterior:
        """Its posterior, from the path given or from the run directory, checked against the network."""
        from .. import checkpoint, posteriors

        if path is None:
            if self.directory is None:
                raise ValueError(
                    f"{self.name} is a shipped model: say which posterior with --posterior FILE, "
                    f"as written by `flare fit {self.name} --out FILE`."
                )
            path = self.directory / POSTERIOR_FILE
        if not path.is_file():
            raise FileNotFoundError(f"no posterior at {path}; fit one with `flare fit`.")
        drawn = checkpoint.metadata(path).get("drawn")
        pairs = None if drawn is None else self.pairs(**drawn)
        return posteriors.load(path, denoiser=self.denoiser, pairs=pairs)


def open_run(run: str, model: str | None = None, data: Path | None = None, device: str | None = None) -> Run:
    """Open a shipped model, a trained run directory, or a directory of a network of one's own."""
    from .. import checkpoint, zoo
    from ..zoo.models import CONFIG_FILE

    directory = Path(run)
    config_path = directory / CONFIG_FILE
    config = checkpoint.load_json(config_path) if config_path.is_file() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{config_path} is not the configuration of a run.")
    if "own" in config:
        opened = _own(directory, config, model, data)
    else:
        if model is not None:
            raise ValueError(f"{run} is not a run of a network of your own: leave --model out.")
        loaded = zoo.load(run)
        opened = Run(
            loaded.name, loaded.denoiser, loaded.schedule, loaded.shape, loaded.clip, loaded.weighting,
            loaded.data, directory if directory.is_dir() else None,
        )  # fmt: skip
        if data is not None:
            from .files import read_array

            opened.data = _fitting(read_array(data), opened.shape, data)
    if device is not None:
        opened.denoiser = opened.denoiser.to(device)
    return opened


def configure_own(
    model: str,
    data: Path | None,
    *,
    schedule: dict[str, Any],
    prediction: str,
    clip: float | None,
    weighting: str,
) -> tuple[dict[str, Any], Denoiser, Schedule, Tensor]:
    """The configuration of a new run of one's own network, with its parts; what does not fit is refused."""
    from .. import schedules
    from ..checks import one_of
    from ..denoiser import times
    from ..noising import WEIGHTINGS
    from .files import read_array

    if data is None:
        raise ValueError("a new run of a network of your own needs --data FILE beside --model.")
    one_of("weighting", weighting, WEIGHTINGS)
    levels = schedules.build(schedule)
    array = read_array(data)
    denoiser = load_network(model, prediction)
    x = array[:2].to(denoiser.device)
    denoiser.check(x, times(levels.at(levels.T).time, x))
    own = {
        "model": model,
        "data": str(data.resolve()),
        "shape": list(array.shape[1:]),
        "prediction": denoiser.prediction,
        "clip": float(array.abs().max()) if clip is None else clip,
        "weighting": weighting,
    }
    return {"format": FORMAT, "own": own, "schedule": dict(levels.spec)}, denoiser, levels, array


def load_network(model: str, prediction: str) -> Denoiser:
    """Call package.module:function and make what it returns (a network or a Denoiser) a Denoiser."""
    from torch import nn

    from ..denoiser import Denoiser

    module, separator, function = model.partition(":")
    if not separator or not module or not function:
        raise ValueError(f"--model must be package.module:function, got {model!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--model {model}: {error}; is it installed, or in the current directory?"
        ) from error
    except AttributeError as error:
        raise ValueError(f"--model {model}: {error}.") from error
    made = make()
    if isinstance(made, Denoiser):
        return made
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"--model {model} must return a torch.nn.Module or a flare.Denoiser, got {type(made).__name__}."
        )
    return Denoiser(made, prediction)


def _own(directory: Path, config: dict[str, Any], model: str | None, data: Path | None) -> Run:
    from .. import checkpoint, schedules
    from ..denoiser import Denoiser
    from ..zoo.models import WEIGHTS_FILE
    from .files import read_array

    try:
        own, schedule = config["own"], schedules.build(config["schedule"])
        if model is None:
            raise ValueError(
                f"{directory} is a run of the network {own['model']}: name it again with --model "
                f"{own['model']}. Code is run only if the command line says so."
            )
        path = data if data is not None else Path(own["data"])
        shape = tuple(own["shape"])
        denoiser = load_network(model, own["prediction"])
        if (directory / WEIGHTS_FILE).is_file():  # trained here: these weights, not the function's
            net = copy.deepcopy(denoiser.module)
            checkpoint.load_into(
                net, checkpoint.load(directory / WEIGHTS_FILE)[0], str(directory / WEIGHTS_FILE)
            )
            denoiser = Denoiser(net, denoiser.prediction)
        array = _fitting(read_array(path), shape, path)
        return Run(directory.name, denoiser, schedule, shape, own["clip"], own["weighting"], array, directory)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}/config.json is not whole: {error}.") from error


def _fitting(array: Tensor, shape: tuple[int, ...], path: Path) -> Tensor:
    if tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {shape}.")
    return array
