"""A run as the commands see it: a network with its schedule, data and settings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from ..diffusion.noising import Pairs, Weighting
    from ..diffusion.samplers import Steps
    from ..diffusion.schedules import Schedule
    from ..network.denoiser import Denoiser
    from ..posteriors import Posterior
    from ..scorer.scorer import Scorer

POSTERIOR_FILE = "posterior.safetensors"


@dataclass
class Run:
    """What a command works on.

    Attributes:
        name: the model, or the last part of the directory; for titles.
        denoiser: the network.
        schedule: the noise levels.
        shape: the shape of one sample.
        clip: the range of x̂0, or None.
        weighting: the loss weights of its training.
        data: the training data, (n, *shape).
        directory: where its files are; None for a shipped model.
        columns: names of the columns of the data; empty if its file has none.
    """

    name: str
    denoiser: Denoiser
    schedule: Schedule
    shape: tuple[int, ...]
    clip: float | None
    weighting: Weighting
    data: Tensor
    directory: Path | None
    columns: Sequence[str] = ()

    def sampler(self, name: str, n: int | None) -> Steps:
        """The table of a sampler, a name with options, for this run's schedule and clip."""
        from .named import make_sampler

        return make_sampler(name, self.schedule, n, self.clip)

    @property
    def settings(self) -> dict[str, Any]:
        """The assumptions about its training, by the flags that set them, and what the network gets as t."""
        from .named import describe_schedule

        return {
            "schedule": describe_schedule(self.schedule.spec),
            "levels": self.schedule.T,
            "prediction": self.denoiser.prediction,
            "clip": self.clip,
            "weighting": self.weighting,
            "time": _describe_time(self.schedule),
        }

    def pairs(self, n: int, seed: int, held_out: float = 0.0) -> Pairs:
        """Training pairs of this run, from its data without the fraction that is held out."""
        from ..diffusion import noising

        data = noising.split(self.data, held_out, seed)[0] if held_out else self.data
        return noising.pairs(data, self.schedule, n=n, seed=seed, weighting=self.weighting)

    def find_posterior(self, path: Path | None) -> Path:
        """The file of its posterior: `path`, or that of the run directory."""
        if path is None:
            if self.directory is None:
                raise ValueError(
                    f"{self.name} is a shipped model: say which posterior with --posterior FILE, "
                    f"as written by `flare fit {self.name} --out FILE`."
                )
            path = self.directory / POSTERIOR_FILE
        if not path.is_file():
            raise FileNotFoundError(f"no posterior at {path}; fit one with `flare fit`.")
        return path

    def posterior(self, path: Path | None) -> Posterior:
        """Load its posterior from `path` or from the run directory, and check it against the network."""
        from .. import posteriors
        from ..storage import checkpoint

        path = self.find_posterior(path)
        drawn = checkpoint.metadata(path).get("drawn")
        pairs = None if drawn is None else self.pairs(**drawn)
        posterior = posteriors.load(path, denoiser=self.denoiser, pairs=pairs)
        posterior.check(self.denoiser, self.schedule)
        return posterior

    def has_scorer(self, path: Path | None) -> bool:
        """Whether there is a scorer beside the posterior, as `flare fit` writes it."""
        from ..scorer.directory import Places

        if path is None and self.directory is None:
            return False
        return Places.of(path or self.directory).main.is_file()  # type: ignore[arg-type]

    def scorer(self, path: Path | None) -> Scorer:
        """Load the scorer beside a posterior, and check it against the network; warn of its problems."""
        from ..core.distributed import is_main
        from ..core.progress import warn
        from ..scorer.directory import load_beside
        from ..scorer.inputs import OpenModel

        posterior, place = self.posterior(path), path or self.directory
        assert place is not None
        scorer = load_beside(place, OpenModel(self.denoiser, self.schedule), posterior)
        for problem in scorer.about["problems"] if is_main() else []:
            warn(f"do not trust these p-values yet: {problem}", UserWarning)
        return scorer


def _describe_time(schedule: Schedule) -> str:
    """What the network receives as t, in words."""
    first, last = (schedule.times[t].item() for t in (1, schedule.T))
    if schedule.integer_times:
        return f"an integer t in {first:.0f}..{last:.0f}"
    if schedule.variance_exploding:
        return f"a number from {first:g} (σ = {schedule.sigma[1]:g}) to {last:g} (σ = {schedule.sigma[-1]:g})"
    return f"a number s in [0, {last:g}]" if schedule.continuous else f"a number from {first:g} to {last:g}"


def open_run(run: str, model: str | None = None, data: Path | None = None, device: str | None = None) -> Run:
    """Open a shipped model, a trained run directory, a run of the user's own network, or a scorer.

    Args:
        run: the name of a shipped model, a directory, or what `Scorer.save` wrote.
        model: package.module:function, for a run of the user's own network.
        data: replaces the training data of the run.
        device: where to put the network.
    """
    from ..bench.shipped import CONFIG_FILE
    from ..scorer import directory as files
    from ..storage import checkpoint

    config_path = Path(run) / CONFIG_FILE
    config = checkpoint.load_json(config_path) if config_path.is_file() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{config_path} is not the configuration of a run.")
    if "own" in config:
        opened = _open_own(Path(run), config, model, data)
    elif files.is_scorer(Path(run)):
        opened = _open_scorer(Path(run), model)
    elif model is not None:
        raise ValueError(f"{run} is not a run of your own network: leave out --model.")
    else:
        opened = _open_benchmark(run, data)
    if device is not None:
        opened.denoiser = opened.denoiser.to(device)
    return opened


def read_samples(path: Path, shape: tuple[int, ...], columns: Sequence[str]) -> Tensor:
    """Read samples that must have the shape of the model's; their columns get the order of `columns`."""
    from ..scorer.inputs import align_columns

    array, names = _read_data(path, shape)
    return align_columns(str(path), array, names, columns)


def _read_data(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    """Read samples that must have the shape of the model's, and the names of their columns."""
    from .files import read_table

    array, names = read_table(path)
    if tuple(array.shape[1:]) != shape:
        raise ValueError(f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {shape}.")
    return array, names


def draw_shared_directions(
    posterior: Posterior, directions: int | Literal["exact"], seed: int
) -> Tensor | Literal["exact"]:
    """Draw directions once for all parts and processes: a matrix-free posterior solves for them together."""
    if directions == "exact":  # nothing is drawn
        return directions
    from ..core.distributed import broadcast
    from ..sampling.options import draw_directions

    return broadcast(draw_directions(posterior, directions, seed))


def _open_benchmark(run: str, data: Path | None) -> Run:
    from .. import bench

    loaded = bench.load(run)
    array, columns = (loaded.data, []) if data is None else _read_data(data, loaded.shape)
    return Run(
        loaded.name,
        loaded.denoiser,
        loaded.schedule,
        loaded.shape,
        loaded.clip,
        loaded.weighting,
        array,
        Path(run) if Path(run).is_dir() else None,
        columns,
    )


def _open_scorer(directory: Path, model: str | None) -> Run:
    """Open a scorer that was saved in Python; its data are the training samples that it has kept."""
    from ..scorer import directory as files
    from .networks import load_network

    if model is None:
        raise ValueError(
            f"{directory} is a scorer: name its network with --model package.module:function. Code runs only "
            "if the command line names it."
        )
    denoiser, schedule = load_network(model, files.read_main(directory).prediction)
    scorer = files.load(directory, denoiser, schedule=schedule)
    if scorer.data is None:
        raise ValueError(
            f"{directory} was saved without training data, which the commands need: save it with data=True, "
            "or use it in Python with flare.load."
        )
    return Run(
        directory.name, denoiser, scorer.schedule, scorer.shape, scorer.clip, "uniform", scorer.data,
        directory, scorer.about.get("columns", ()),
    )  # fmt: skip


def _open_own(directory: Path, config: dict[str, Any], model: str | None, data: Path | None) -> Run:
    from ..bench.shipped import WEIGHTS_FILE
    from ..diffusion import schedules
    from ..network.denoiser import Denoiser
    from ..storage import checkpoint
    from .networks import load_network

    try:
        own, schedule = config["own"], schedules.build(config["schedule"])
        if model is None:
            raise ValueError(
                f"{directory} is a run of the network {own['model']}: name it again with --model "
                f"{own['model']}. Code runs only if the command line names it."
            )
        path = data if data is not None else Path(own["data"])
        shape = tuple(own["shape"])
        denoiser, _ = load_network(model, own["prediction"])
        weights = directory / WEIGHTS_FILE
        if weights.is_file():  # trained here: use these weights, not the function's
            net = copy.deepcopy(denoiser.module)
            checkpoint.load_into(net, checkpoint.load(weights)[0], str(weights))
            denoiser = Denoiser(net, denoiser.prediction)
        array, columns = _read_data(path, shape)
        return Run(
            directory.name, denoiser, schedule, shape, own["clip"], own["weighting"], array, directory,
            columns,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}/config.json is incomplete: {error}.") from error
