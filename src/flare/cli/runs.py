"""A run as the commands see it: a network with its schedule, data and settings, from wherever it comes."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..diffusion.noising import Pairs, Weighting
    from ..diffusion.samplers import Steps
    from ..diffusion.schedules import Schedule
    from ..network.denoiser import Denoiser
    from ..posteriors import Posterior

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
    weighting: Weighting
    data: Tensor
    directory: Path | None

    def sampler(self, name: str, n: int | None) -> Steps:
        """A sampler's table by name, with this run's schedule and clip."""
        from ..core.validation import one_of
        from ..diffusion.samplers import SAMPLERS

        return SAMPLERS[one_of("sampler", name, SAMPLERS)](self.schedule, n, clip=self.clip)

    @property
    def settings(self) -> dict[str, Any]:
        """What is assumed of its training, by the flags that set it, and what the network receives as t."""
        T = self.schedule.T
        return {
            "schedule": self.schedule.spec.get("name", "its own"),
            "levels": T,
            "prediction": self.denoiser.prediction,
            "clip": self.clip,
            "weighting": self.weighting,
            "time": "a number s in [0, 1]" if self.schedule.continuous else f"an integer t in 0..{T - 1}",
        }

    def pairs(self, n: int, seed: int) -> Pairs:
        """Training pairs of this run."""
        from ..diffusion import noising

        return noising.pairs(self.data, self.schedule, n=n, seed=seed, weighting=self.weighting)

    def posterior(self, path: Path | None) -> Posterior:
        """Its posterior, from the path given or from the run directory, checked against the network."""
        from .. import posteriors
        from ..storage import checkpoint

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
        posterior = posteriors.load(path, denoiser=self.denoiser, pairs=pairs)
        posterior.check(self.denoiser, self.schedule)
        return posterior


def open_run(run: str, model: str | None = None, data: Path | None = None, device: str | None = None) -> Run:
    """Open a shipped model, a trained run directory, or a directory of a network of one's own."""
    from .. import zoo
    from ..storage import checkpoint
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

            opened.data = _check_shape(read_array(data), opened.shape, data)
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
    from ..core.validation import one_of
    from ..diffusion import schedules
    from ..diffusion.noising import WEIGHTINGS
    from ..network.denoiser import times
    from ..network.probing import probe
    from .files import read_array
    from .networks import load_network

    if data is None:
        raise ValueError("a new run of a network of your own needs --data FILE beside --model.")
    one_of("weighting", weighting, WEIGHTINGS)
    levels = schedules.build(schedule)
    array = read_array(data)
    denoiser = load_network(model, prediction)
    x = array[:2].to(denoiser.device)
    try:
        probe(denoiser, x, times(levels.at(levels.T).time, x))
    except ValueError as error:
        raise ValueError(f"--model {model} does not fit --data {data}: {error}") from error
    own = {
        "model": model,
        "data": str(data.resolve()),
        "shape": list(array.shape[1:]),
        "prediction": denoiser.prediction,
        "clip": float(array.abs().max()) if clip is None else clip,
        "weighting": weighting,
    }
    return {"format": FORMAT, "own": own, "schedule": dict(levels.spec)}, denoiser, levels, array


def prepare_own(
    directory: Path, model: str, data: Path | None, flags: dict[str, Any], overwrite: bool
) -> bool:
    """Write the configuration of a new run, or of one that is replaced; whether it was written.

    Args:
        directory: of the run.
        model: package.module:function.
        data: the training data.
        flags: schedule, levels, prediction, clip and weighting; None for what was not given: of a run that is
            replaced it stays as it was.
        overwrite: whether to replace the configuration that is there, and its posterior.
    """
    from ..storage import checkpoint
    from ..zoo.models import CONFIG_FILE, WEIGHTS_FILE

    path, before = directory / CONFIG_FILE, {}
    if path.is_file():
        if not overwrite:
            return False
        config = checkpoint.load_json(path)
        if "own" not in config or (directory / WEIGHTS_FILE).is_file():
            raise ValueError(
                f"{directory} was trained with its configuration: --overwrite does not change it. "
                "Leave it out, or fit into another directory."
            )
        before = {**config["own"], "schedule": config["schedule"]["name"], "levels": config["schedule"]["T"]}
        data = Path(before["data"]) if data is None else data
        if str(data.resolve()) != before["data"]:
            del before["clip"]  # it may be the range of the other data
    default = {
        "schedule": "cosine",
        "levels": 1000,
        "prediction": "epsilon",
        "clip": None,
        "weighting": "uniform",
    }
    chosen = {
        name: before.get(name, default[name]) if given is None else given for name, given in flags.items()
    }
    config, *_ = configure_own(
        model, data, schedule={"name": chosen.pop("schedule"), "T": chosen.pop("levels")}, **chosen
    )
    if flags["prediction"] not in (None, predicts := config["own"]["prediction"]):
        raise ValueError(
            f"--prediction {flags['prediction']}, but {model} returns a Denoiser that predicts {predicts}: "
            "leave the flag out, or change the function."
        )
    (directory / POSTERIOR_FILE).unlink(missing_ok=True)
    checkpoint.save_json(path, config)
    return True


def refuse_other_settings(opened: Run, model: str | None, data: Path | None, flags: dict[str, Any]) -> None:
    """Raise if flags that were given disagree with the run, naming each with both values."""
    from ..storage import checkpoint
    from ..zoo.models import CONFIG_FILE

    own: dict[str, Any] = {}
    if opened.directory is not None:
        own = checkpoint.load_json(opened.directory / CONFIG_FILE).get("own", {})
    pairs = [(name, opened.settings[name], given) for name, given in flags.items()]
    if own:
        pairs.append(("model", own["model"], model))
        if data is not None and not _same_file(Path(own["data"]), data):
            pairs.append(("data", own["data"], str(data)))
    other = [
        f"--{name} {given} (the run has {value})"
        for name, value, given in pairs
        if given is not None and not _equal(value, given)
    ]
    if other:
        way = ", or add --overwrite to replace its configuration and posterior" if own else ""
        raise ValueError(
            f"{opened.name} is a run with other settings: {', '.join(other)}. Leave the flags out to use the "
            f"run's own{way}."
        )


def _equal(value: Any, given: Any) -> bool:
    if isinstance(value, float) and isinstance(given, float):
        return math.isclose(value, given, rel_tol=1e-6)
    return bool(value == given)


def _same_file(before: Path, given: Path) -> bool:
    """Whether two paths are one file, or files of the same content."""
    import filecmp

    if before == given.resolve():
        return True
    return before.is_file() and given.is_file() and filecmp.cmp(before, given, shallow=False)


def _own(directory: Path, config: dict[str, Any], model: str | None, data: Path | None) -> Run:
    from ..diffusion import schedules
    from ..network.denoiser import Denoiser
    from ..storage import checkpoint
    from ..zoo.models import WEIGHTS_FILE
    from .files import read_array
    from .networks import load_network

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
        array = _check_shape(read_array(path), shape, path)
        return Run(directory.name, denoiser, schedule, shape, own["clip"], own["weighting"], array, directory)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}/config.json is not whole: {error}.") from error


def _check_shape(array: Tensor, shape: tuple[int, ...], path: Path) -> Tensor:
    if tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {shape}.")
    return array
