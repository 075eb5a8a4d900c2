"""Configurations of runs of the user's own networks: made from flags, compared with flags, replaced."""

from __future__ import annotations

import filecmp
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named import describe_schedule, parse_schedule
from .runs import POSTERIOR_FILE, Run

if TYPE_CHECKING:
    from torch import Tensor

    from ..diffusion.schedules import Schedule
    from ..network.denoiser import Denoiser

FORMAT = 1
DEFAULTS: dict[str, Any] = {
    "schedule": "cosine",
    "levels": 1000,
    "prediction": "epsilon",
    "clip": None,
    "weighting": "uniform",
}


@dataclass(frozen=True)
class OwnFlags:
    """The flags of a command that concern the user's own network.

    Attributes:
        model: package.module:function; None for other runs.
        data: the training data; None for those of the run.
        settings: schedule, levels, prediction, clip and weighting; None for what was not given.
        overwrite: whether to replace the configuration and the posterior of an existing run.
    """

    model: str | None
    data: Path | None
    settings: dict[str, Any]
    overwrite: bool = False


def configure_own(
    model: str,
    data: Path | None,
    *,
    schedule: dict[str, Any],
    prediction: str,
    clip: float | None,
    weighting: str,
) -> tuple[dict[str, Any], Denoiser, Schedule, Tensor]:
    """Configure a new run and load its network, schedule and data; raise if these do not fit together."""
    from ..core.validation import one_of
    from ..diffusion import schedules
    from ..diffusion.noising import WEIGHTINGS
    from ..network.denoiser import times
    from ..network.probing import call as probe
    from .files import read_array
    from .networks import load_network

    if data is None:
        raise ValueError("a new run of your own network needs --data FILE in addition to --model.")
    one_of("weighting", weighting, WEIGHTINGS)
    array = read_array(data)
    denoiser, levels = load_network(model, prediction)
    levels = schedules.build(schedule) if levels is None else levels
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


def prepare_own(directory: Path, flags: OwnFlags) -> bool:
    """Write the configuration of a run that is new or to be overwritten; return whether it was written.

    A run that is overwritten keeps its settings where no flag is given.
    """
    from ..bench.shipped import CONFIG_FILE
    from ..diffusion import schedules
    from ..scorer.directory import remove_beside
    from ..storage import checkpoint

    path, before, data = directory / CONFIG_FILE, {}, flags.data
    if path.is_file():
        if not flags.overwrite:
            return False
        before = _load_settings(directory)
        data = Path(before["data"]) if data is None else data
        if str(data.resolve()) != before["data"]:
            del before["clip"]  # it may be the range of the old data
    chosen = {
        name: before.get(name, DEFAULTS[name]) if given is None else given
        for name, given in flags.settings.items()
    }
    schedule = parse_schedule(chosen.pop("schedule"), chosen.pop("levels"))
    config, *_ = configure_own(str(flags.model), data, schedule=schedule, **chosen)
    named = [f"--{name}" for name in ("schedule", "levels") if flags.settings[name] is not None]
    if named and config["schedule"] != dict(schedules.build(schedule).spec):
        raise ValueError(f"{flags.model} brings its own schedule: leave out {' and '.join(named)}.")
    asked, predicts = flags.settings["prediction"], config["own"]["prediction"]
    if asked not in (None, predicts):
        raise ValueError(
            f"--prediction {asked}, but {flags.model} returns a Denoiser that predicts {predicts}: leave out "
            "the flag, or change the function."
        )
    remove_beside(directory / POSTERIOR_FILE)
    (directory / POSTERIOR_FILE).unlink(missing_ok=True)
    checkpoint.save_json(path, config)
    return True


def refuse_other_settings(opened: Run, flags: OwnFlags) -> None:
    """Raise if given flags disagree with the run, naming each with both values."""
    from ..bench.shipped import CONFIG_FILE
    from ..storage import checkpoint

    own: dict[str, Any] = {}
    if opened.directory is not None:
        own = checkpoint.load_json(opened.directory / CONFIG_FILE).get("own", {})
    given = dict(flags.settings)
    if given["schedule"] is not None:  # its options may be written in another order, or be the defaults
        given["schedule"] = describe_schedule(parse_schedule(given["schedule"], opened.schedule.T))
    compared = [(name, opened.settings[name], value) for name, value in given.items()]
    if own:
        compared.append(("model", own["model"], flags.model))
        if flags.data is not None and not _is_same_file(Path(own["data"]), flags.data):
            compared.append(("data", own["data"], str(flags.data)))
    other = [
        f"--{name} {asked} (the run has {value})"
        for name, value, asked in compared
        if asked is not None and not _is_equal(value, asked)
    ]
    if other:
        way = ", or add --overwrite to replace its configuration and posterior" if own else ""
        raise ValueError(
            f"{opened.name} is a run with other settings: {', '.join(other)}. Leave out the flags to use the "
            f"run's own{way}."
        )


def _load_settings(directory: Path) -> dict[str, Any]:
    """The settings of a run that may be overwritten, by the names of the flags."""
    from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
    from ..storage import checkpoint

    config = checkpoint.load_json(directory / CONFIG_FILE)
    if "own" not in config or (directory / WEIGHTS_FILE).is_file():
        raise ValueError(
            f"{directory} was trained with its configuration, which --overwrite does not change. "
            "Leave out --overwrite, or fit into another directory."
        )
    table = config["schedule"]
    if "T" not in table:  # betas that the network brought along, and will again
        return dict(config["own"])
    return {**config["own"], "schedule": describe_schedule(table), "levels": table["T"]}


def _is_equal(value: Any, given: Any) -> bool:
    if isinstance(value, float) and isinstance(given, float):
        return math.isclose(value, given, rel_tol=1e-6)
    return bool(value == given)


def _is_same_file(before: Path, given: Path) -> bool:
    """Whether two paths name the same file, or files with the same content."""
    if before == given.resolve():
        return True
    return before.is_file() and given.is_file() and filecmp.cmp(before, given, shallow=False)
