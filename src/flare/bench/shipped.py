"""Benchmark models described by a JSON configuration, which determines data, network and schedule.

A run directory holds `config.json` and `model.safetensors` (and, after training, `loss.csv`). The checkpoints
that ship with the package are run directories inside it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.validation import one_of
from ..diffusion import schedules
from ..diffusion.noising import LEVEL_SAMPLINGS, WEIGHTINGS, Weighting
from ..diffusion.samplers import SAMPLERS, Steps
from ..diffusion.schedules import Schedule
from ..model import Model
from ..network.scorenet import ConvNet, ScoreNet
from ..network.training import TrainConfig
from ..network.unet import UNet
from ..storage import checkpoint
from . import datasets

FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_SHIPPED = Path(__file__).parent / "checkpoints"


def _mlp(dim: int, width: int) -> dict[str, Any]:
    return {"name": "ScoreNet", "dim": dim, "width": width}


# The paper prints a learning rate of 5e-6 for the grid, which does not train in reasonable time.
# The models of images are not of the paper: their training is short enough to leave real failures.
_BENCHMARKS: dict[str, tuple[dict[str, Any], int, TrainConfig]] = {  # network, T, training
    "grid": (_mlp(2, 32), 800, TrainConfig(steps=60_000, batch_size=256)),
    "sines": (_mlp(10, 32), 600, TrainConfig(steps=30_000, batch_size=512)),
    "chirp": (_mlp(80, 128), 600, TrainConfig(steps=60_000, batch_size=256)),
    "damped": (_mlp(40, 128), 600, TrainConfig(steps=60_000, batch_size=256)),
    "shapes": (
        {"name": "UNet", "channels": 3, "side": 32, "width": 16},
        1000,
        TrainConfig(steps=24_000, batch_size=16, learning_rate=1.5e-3),
    ),
    "digits": (
        {"name": "ConvNet", "channels": 1, "side": 8, "width": 24},
        600,
        TrainConfig(steps=4_000, batch_size=64, learning_rate=1e-3, warmup=200, ema=0.998),
    ),
}
#: the shipped models
NAMES = tuple(_BENCHMARKS)
_SEED = (lambda seed: seed is None or (type(seed) is int and 0 <= seed < 2**63), "an integer of at least 0")
#: what a configuration must have, by its dotted keys; files may be corrupt, so sizes have limits
_SCHEMA: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (lambda number: number == FORMAT, f"{FORMAT}, which this version of FLARE reads"),
    "prediction": (lambda name: isinstance(name, str), "what the network predicts, such as 'epsilon'"),
    "dataset.name": (lambda name: name in NAMES, f"one of {', '.join(NAMES)}"),
    "dataset.n": (lambda n: type(n) is int and 0 < n <= 10**8, "an integer in 1..100,000,000"),
    "dataset.side": (lambda n: n is None or (type(n) is int and 0 < n <= 1000), "an integer in 1..1000"),
    "dataset.seed": _SEED,
    "training.seed": _SEED,
    "training.weighting": (lambda name: name in WEIGHTINGS, f"one of {', '.join(WEIGHTINGS)}"),
    "training.level_sampling": (
        lambda name: name is None or name in LEVEL_SAMPLINGS, f"one of {', '.join(LEVEL_SAMPLINGS)}"
    ),
    "clip": (lambda clip: type(clip) in (int, float) and 0 < clip < math.inf, "a positive number"),
}  # fmt: skip
_NETWORKS: dict[str, tuple[Any, str]] = {
    "ScoreNet": (ScoreNet, "dim"), "ConvNet": (ConvNet, "channels"), "UNet": (UNet, "channels")
}  # fmt: skip

_OPTIONS = ("n_blocks", "released")  # of ScoreNet


class Benchmark(Model):
    """A model of a benchmark: a `flare.Model` with its training data and its configuration.

    >>> model = flare.bench.load("sines")
    >>> len(model.sampler("ddpm")), len(model.steps(20))
    (600, 20)

    Attributes:
        name: The name of its data set.
        config: Its configuration, as `configure` makes it.

    Args:
        net: The network.
        config: Its configuration.
        source: The name of a shipped model, or the directory of a trained one.
    """

    def __init__(self, net: nn.Module, config: Mapping[str, Any], source: str) -> None:
        network = config["network"]
        is_image = "channels" in network
        sizes = (network["channels"], network["side"], network["side"]) if is_image else (network["dim"],)
        super().__init__(
            net, schedules.build(config["schedule"]), config["prediction"], shape=tuple(map(int, sizes)),
            clip=float(config["clip"]), source=source,
        )  # fmt: skip
        self.name, self.config = str(config["dataset"]["name"]), config

    @property
    def weighting(self) -> Weighting:
        """The loss weights that the model was trained with."""
        return cast("Weighting", self.config["training"]["weighting"])

    @cached_property
    def data(self) -> Tensor:
        """The training data, (n, *shape), regenerated from its seed."""
        return datasets.make(**self.config["dataset"])

    def sampler(self, name: str, n: int | None = None, **options: Any) -> Steps:
        """A sampler by name (`samplers.SAMPLERS`) with this model's schedule and clip.

        Args:
            name: The name of the sampler; "ddpm" on all levels is what the paper uses.
            n: The number of steps; by default one per level.
            **options: Options of the sampler.
        """
        return SAMPLERS.find(name)(self.schedule, n, clip=self.clip, **options)


def configure(
    name: str,
    *,
    width: int | None = None,
    network: Mapping[str, Any] | None = None,
    samples: int | None = None,
    data_seed: int = 0,
    data: Mapping[str, Any] | None = None,
    **training: Any,
) -> dict[str, Any]:
    """The configuration of a benchmark model; the defaults describe the shipped one.

    >>> flare.bench.configure("sines")["training"]["batch_size"]
    512

    Args:
        name: The name of a shipped model, one of `NAMES`.
        width: The width of the network, by default the same as in the shipped model.
        network: Further options of the network: `n_blocks` and `released` of the paper's MLP.
        samples: The size of the training set.
        data_seed: Random seed for the training set.
        data: Further options of the data set, such as {"side": 5} for the grid.
        **training: Fields of `TrainConfig`, such as `steps=1000`.
    """
    default, T, config = _BENCHMARKS[one_of("model", name, _BENCHMARKS)]
    for key in network or {}:
        one_of("network option", key, _OPTIONS if default["name"] == "ScoreNet" else ())
    for key in training:
        one_of("training option", key, [field.name for field in fields(TrainConfig)])
    made = datasets.make(name, samples, data_seed, **(data or {}))
    return {
        "format": FORMAT,
        "dataset": {"name": name, "n": len(made), "seed": data_seed, **(data or {})},
        "network": {**default, "width": width or default["width"], **(network or {})},
        "schedule": dict(schedules.cosine(T).spec),
        "prediction": "epsilon",
        "clip": round(float(made.abs().max()), 4),
        "training": replace(config, **training).describe(),
    }


def train_config(config: Mapping[str, Any]) -> TrainConfig:
    """The training part of a configuration.

    >>> flare.bench.train_config(model.config).batch_size
    512
    """
    return TrainConfig(**config["training"])


def build(config: Mapping[str, Any]) -> tuple[nn.Module, Schedule]:
    """The untrained network (seeded) and the schedule of a configuration.

    >>> net, schedule = flare.bench.build(flare.bench.configure("sines", width=16))
    >>> sum(parameter.numel() for parameter in net.parameters())
    4218
    """
    schedule = schedules.build(config["schedule"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(config["training"]["seed"]))
        net = _make_network(config["network"], schedule)
    return net, schedule


def _make_network(network: Mapping[str, Any], schedule: Schedule) -> nn.Module:
    make, size = _NETWORKS[one_of("network", network["name"], _NETWORKS)]
    options = {key: network[key] for key in _OPTIONS if key in network}
    return make(network[size], network["width"], schedule, **options)


def save(directory: str | os.PathLike[str], config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write a run directory, the weights last: a run with weights counts as finished.

    >>> flare.bench.save("run", model.config, denoiser.params)
    >>> flare.bench.load("run").name
    'sines'
    """
    checkpoint.save_json(Path(directory) / CONFIG_FILE, dict(config))
    checkpoint.save(Path(directory) / WEIGHTS_FILE, weights, {"format": FORMAT})


def load(run: str | os.PathLike[str]) -> Benchmark:
    """Load a shipped model by name, or a trained one from its run directory.

    >>> model = flare.bench.load("sines")
    >>> model.denoiser
    Denoiser(ScoreNet, prediction='epsilon', 8,330 parameters)
    >>> model.data.shape
    torch.Size([5000, 10])
    """
    directory = Path(run)
    if not directory.is_dir():
        if directory.name != str(run):
            raise FileNotFoundError(
                f"no run directory at {run}; give its path, or one of {', '.join(NAMES)}."
            )
        directory = _SHIPPED / one_of("model", str(run), NAMES)
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / file).is_file():
            raise FileNotFoundError(
                f"{directory} has no {file}: it is not a finished run. Train it with "
                "`flare bench train NAME --out DIR`; the same command resumes an interrupted run."
            )
    config = read_config(directory)
    weights, _ = checkpoint.load(directory / WEIGHTS_FILE)
    try:
        schedule = schedules.build(config["schedule"])
        with torch.device("meta"):  # check the shapes before allocating anything
            blank = _make_network(config["network"], schedule)
        checkpoint.check_fit(blank, weights, str(directory / WEIGHTS_FILE))
        model = Benchmark(build(config)[0].requires_grad_(False), config, str(run))
    except (KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        path = directory / CONFIG_FILE
        raise ValueError(f"{path} is not the configuration of a run: {error!r}.") from error
    checkpoint.load_into(model.denoiser.module, weights, str(directory / WEIGHTS_FILE))
    return model


def read_config(directory: Path) -> dict[str, Any]:
    """Load the configuration of a run directory, whose values must be as in `_SCHEMA`."""
    path = directory / CONFIG_FILE
    config = checkpoint.load_json(path)
    for key, (is_valid, expected) in _SCHEMA.items():
        value = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not is_valid(value):
            raise ValueError(
                f"{path} is not the configuration of a run: {key} must be {expected}, got {value!r}."
            )
    return dict(config)
