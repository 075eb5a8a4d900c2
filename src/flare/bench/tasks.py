"""Tasks: a trained model, its samples and which of them are bad, in a directory with hashes.

| file | what it holds |
|---|---|
| `task.json` | what the model is, where the truth comes from, and the SHA-256 of the other files |
| `model.safetensors` | the weights |
| `samples.safetensors` | samples of several seeds, which are bad, and the kind of their fault |
| `data.safetensors` | training data, unless it is generated from a seed, and held-out data |
| `card.md` | the same facts for readers |

The kind of a fault says how far a bad sample is from the training data, by its mean distance to the 5
nearest: *far* is farther than every held-out sample, *near* is farther than 90% of them, and *subtle* is no
farther than that.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core import __version__
from ..core.conditions import check_conditions
from ..core.noise_streams import NoiseStreams
from ..core.validation import one_of, require_samples
from ..diffusion import schedules
from ..integrations.diffusers_networks import NETWORKS, Network
from ..model import Model
from ..scorer.inputs import open_model
from ..scores.space import Space
from ..storage import checkpoint
from . import datasets, shipped

TASK_FORMAT = 1
MANIFEST, CARD = "task.json", "card.md"
WEIGHTS, SAMPLES, DATA = "model.safetensors", "samples.safetensors", "data.safetensors"
KINDS = ("subtle", "near", "far")
Group = Literal["points", "curves", "images", "series and tables"]
GROUPS: tuple[Group, ...] = ("points", "curves", "images", "series and tables")
StoredAs = Literal["float16", "float32", "uint8"]
STORED: tuple[StoredAs, ...] = ("float16", "float32", "uint8")
_USUAL = 0.9  # share of held-out samples that subtle faults stay within


class Conditions(NamedTuple):
    """The conditions of a task, {} for a model without any: keyword arguments of the network."""

    samples: Mapping[str, Tensor]
    data: Mapping[str, Tensor]
    held_out: Mapping[str, Tensor]


class Task:
    """A task that was read from its directory; its files are checked against their hashes.

    >>> bad = torch.arange(20) < 5
    >>> made = flare.bench.make_task("mine", "sines", data[:20], bad, data[20:300], data[300:400])
    >>> flare.bench.Task("mine")
    Task(mine, 20 samples, 25% bad)

    Attributes:
        directory: Where it is.
        about: The contents of `task.json`.
        samples: The samples of all seeds, (n, *shape).
        bad: Which are bad, (n,) bool.
        kind: The kind of fault of each sample as an index into `KINDS`, −1 for good samples, (n,).
        seed: The seed that each sample was drawn with, (n,).
        mode: The class or mode of each sample, (n,); None if there are none.
        held_out: Real data that the model was not trained on, (m, *shape).
        cond: The conditions of samples, training data and held-out data.

    Args:
        directory: A task directory.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.about = _read_manifest(self.directory)
        stored, self._stored = (checkpoint.load(self.directory / file)[0] for file in (SAMPLES, DATA))
        try:
            self.samples, self.bad, self.kind = (
                _decode(stored["samples"]),
                stored["bad"],
                stored["kind"].long(),
            )
            self.seed, self.mode = stored["seed"].long(), stored.get("mode")
            self.held_out = _decode(self._stored["held_out"])
        except KeyError as error:
            raise ValueError(f"{directory} is damaged: it has no {error}. Make the task again.") from None
        _check(self.directory, self.samples, self.bad, self.held_out, self.seed, self.kind, self.mode)
        self.cond = Conditions(
            _take(stored, "cond."), _take(self._stored, "data_cond."), _take(self._stored, "held_out_cond.")
        )

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.directory.name

    @property
    def hash(self) -> str:
        """Identifies the content of the task: a hash of the hashes of its files."""
        return checkpoint.digest(self.about["files"])[:16]

    @cached_property
    def data(self) -> Tensor:
        """The training data, (N, *shape); some is generated from its seed."""
        if "generated" not in self.about:
            return _decode(self._stored["data"])
        made = self.about["generated"]
        data = datasets.make(**made["dataset"])
        if "order" in made:
            data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(made["order"]))]
        return data[made.get("skip", 0) :]

    @cached_property
    def model(self) -> Model:
        """The trained model; `model.steps()` is the sampler that has drawn the samples."""
        model = build_model(self.about)
        weights, _ = checkpoint.load(self.directory / WEIGHTS)
        checkpoint.load_into(model.denoiser.module, weights, str(self.directory / WEIGHTS))
        model.denoiser.module.requires_grad_(False).eval()
        return model

    @cached_property
    def start(self) -> Tensor | None:
        """The noise x_T that each sample was drawn from, (n, *shape); None for samples of another origin."""
        if not self.about["drawn"]:
            return None
        shape, (seeds, counts) = self.samples.shape[1:], self.seed.unique(return_counts=True)
        return torch.cat(
            [start_noise(*each, shape) for each in zip(seeds.tolist(), counts.tolist(), strict=True)]
        )

    def __repr__(self) -> str:
        return f"Task({self.name}, {len(self.samples):,} samples, {float(self.bad.double().mean()):.0%} bad)"


def start_noise(seed: int, n: int, shape: Sequence[int]) -> Tensor:
    """The noise x_T that `flare.sample` draws the first n samples of a seed from, (n, *shape).

    >>> flare.bench.start_noise(0, 3, (2,)).shape
    torch.Size([3, 2])
    """
    return NoiseStreams(seed, 0, n, tuple(shape), 1).next()


def build_model(about: Mapping[str, Any]) -> Model:
    """The model of a task without its weights: a network by its configuration, or by the user's function.

    >>> flare.bench.build_model({"network": "sines"}).shape
    (10,)

    Args:
        about: The contents of `task.json`.
    """
    network = about["network"]
    if isinstance(network, str):
        return open_model(import_named("network", network)() if ":" in network else shipped.load(network))
    name, options = network["name"], {key: value for key, value in network.items() if key != "name"}
    schedule = schedules.build(about["schedule"])
    net: Any
    if name in NETWORKS:
        try:
            net = Network(getattr(importlib.import_module("diffusers"), name)(**options), about["prediction"])
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"the network of this task is {name} of diffusers: install the extra `diffusers`."
            ) from None
    else:
        net = shipped._make_network(network, schedule)
    return Model(net, schedule, about["prediction"], clip=about["clip"])


def import_named(what: str, name: str) -> Any:
    """Import package.module:name from an installed package or the current directory.

    Args:
        what: The kind of object, for messages.
        name: The name.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{what} must be package.module:function, got {name!r}.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"; leave out .py: {module[:-3]}:{attribute}" if module.endswith(".py") else ""
        raise ValueError(f"{name}: {error}{hint}; is it installed, or in the current directory?") from error
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"{name}: importing {module} failed: {describe_error(error)}") from error
    if not hasattr(imported, attribute):
        raise ValueError(f"{name}: {module} has no {attribute!r}; it is read from {imported.__file__}.")
    return getattr(imported, attribute)


def describe_error(error: Exception) -> str:
    """Describe an error of the user's code in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first} ({place.filename}, line {place.lineno})."


def make_task(
    directory: str | os.PathLike[str],
    network: str | Mapping[str, Any],
    samples: Tensor,
    bad: Tensor,
    data: Tensor,
    held_out: Tensor,
    *,
    weights: Mapping[str, Tensor] | None = None,
    schedule: Mapping[str, Any] | None = None,
    clip: float | None = None,
    seed: Tensor | None = None,
    drawn: bool = False,
    mode: Tensor | None = None,
    cond: Mapping[str, Tensor] | None = None,
    data_cond: Mapping[str, Tensor] | None = None,
    held_out_cond: Mapping[str, Tensor] | None = None,
    group: Group = "points",
    title: str = "",
    truth: str = "",
    generated: Mapping[str, Any] | None = None,
    stored_as: StoredAs = "float32",
) -> Task:
    """Write a task directory and read it again.

    >>> bad = torch.arange(20) < 5
    >>> train, held_out = data[20:300], data[300:400]
    >>> flare.bench.make_task("mine", "sines", data[:20], bad, train, held_out).kind.unique()
    tensor([-1,  0])

    Args:
        directory: Where to write it; its last part is the name of the task.
        network: A function package.module:function that returns the model, the name or the directory of a
            shipped model, or the configuration of a network: its class in FLARE or diffusers as
            "name", and its options.
        samples: Samples of the model, (n, *shape).
        bad: Which of them are bad, (n,) bool.
        data: The training data, (N, *shape).
        held_out: Real data that the model was not trained on, (m, *shape).
        weights: The weights; by default the weights of the model that `network` names.
        schedule: The noise levels of a configured network, as `Schedule.spec` has them.
        clip: The range of its clean samples.
        seed: The seed of each sample, (n,), in increasing order; intervals are over samples and seeds.
        drawn: Whether the samples of seed s are the first that `flare.sample` draws with `model.steps()` and
            this seed.
        mode: The class or mode of each sample, (n,), if there are any.
        cond: The conditions of the samples.
        data_cond: Those of the training data.
        held_out_cond: Those of the held-out data.
        group: The group of the leaderboard, one of `GROUPS`.
        title: What the data and the model are, in one line.
        truth: How bad samples are identified, in a sentence or two.
        generated: How `datasets.make` makes the training data, which is then not stored.
        stored_as: How samples and data are stored; "uint8" is for images in [−1, 1].
    """
    directory = Path(directory)
    samples, data = require_samples("samples", samples), require_samples("data", data)
    held_out = require_samples("held_out", held_out)
    one_of("group", group, GROUPS)
    one_of("stored_as", stored_as, STORED)
    n = len(samples)
    seed = torch.zeros(n, dtype=torch.long) if seed is None else seed
    _check(directory, samples, bad, held_out, seed, mode)
    if data.shape[1:] != samples.shape[1:] or (seed.diff() < 0).any():
        raise ValueError(
            f"{directory}: data must have the shape of samples, and seed must increase, got data of shape "
            f"{tuple(data.shape)}."
        )
    about: dict[str, Any] = {
        "format": TASK_FORMAT, "flare": __version__, "group": group, "title": title, "truth": truth,
        "network": network, "schedule": schedule, "prediction": "epsilon", "clip": clip, "drawn": drawn,
        **({"generated": generated} if generated else {}),
    }  # fmt: skip
    if weights is None:
        weights = build_model(about).denoiser.module.state_dict()
    kind = _find_kinds(samples, bad, data, held_out)
    tensors = {"samples": _encode(samples, stored_as), "bad": bad, "kind": kind.to(torch.int8), "seed": seed}
    tensors |= {} if mode is None else {"mode": mode.to(torch.int16)}
    tensors |= {f"cond.{key}": value for key, value in check_conditions(cond, n).items()}
    real = {} if generated else {"data": _encode(data, stored_as)}
    real |= {"held_out": _encode(held_out, stored_as)}
    real |= {f"data_cond.{key}": value for key, value in check_conditions(data_cond, len(data)).items()}
    real |= {
        f"held_out_cond.{key}": value for key, value in check_conditions(held_out_cond, len(held_out)).items()
    }
    for file, content in ((WEIGHTS, weights), (SAMPLES, tensors), (DATA, real)):
        checkpoint.save(directory / file, content)
    about["files"] = {file: _hash(directory / file) for file in (WEIGHTS, SAMPLES, DATA)}
    checkpoint.save_json(directory / MANIFEST, about)
    task = Task(directory)
    with checkpoint.atomic(directory / CARD) as partial:
        partial.write_text(_write_card(task), encoding="utf-8")
    return task


def find_tasks(tasks: Any = None) -> list[Path]:
    """The directories of tasks: those given, or all below `tasks` here or in the repository of this file.

    >>> [path.name for path in flare.bench.find_tasks(["tasks/mine"])]
    ['mine']

    Args:
        tasks: One directory or several; None finds all.
    """
    if tasks is None:
        roots = [Path.cwd() / "tasks", Path(__file__).resolve().parents[3] / "tasks"]
        found = next((sorted(root.glob(f"*/{MANIFEST}")) for root in roots if root.is_dir()), [])
        if not found:
            raise FileNotFoundError(
                "there are no tasks below ./tasks. They come with the repository, not with the package: run "
                "from its root, or name task directories."
            )
        return [path.parent for path in found]
    return [Path(each) for each in ([tasks] if isinstance(tasks, (str, os.PathLike)) else tasks)]


def round_samples(x: Tensor, stored_as: StoredAs) -> Tensor:
    """Samples with the rounding of a task's files, (n, *shape).

    >>> flare.bench.round_samples(torch.tensor([[-1.0, 0.1, 1.0]]), "uint8")
    tensor([[-1.0000,  0.0980,  1.0000]])

    Args:
        x: Samples, (n, *shape).
        stored_as: How the task stores them.
    """
    return _decode(_encode(x, stored_as))


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        missing = f"is not a task: it has no {MANIFEST}" if directory.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"{directory} {missing}. FLARE's tasks are in the directory tasks of a checkout; "
            "`flare bench make-task` makes your own."
        )
    about = checkpoint.load_json(path)
    if not isinstance(about, dict) or about.get("format") != TASK_FORMAT:
        made = about.get("flare", "unknown") if isinstance(about, dict) else "unknown"
        raise ValueError(
            f"{path} was made by another version of FLARE ({made}); this one reads format {TASK_FORMAT}. "
            "Make the task again, or take the tasks of this version."
        )
    files = about.get("files")
    if (
        not isinstance(files, dict)
        or set(files) != {WEIGHTS, SAMPLES, DATA}
        or not isinstance(about.get("network"), (str, dict))
        or not {"group", "title", "truth", "drawn"} <= set(about)
    ):
        raise ValueError(
            f"{path} is damaged: it must name the network, the group, and the hashes of {WEIGHTS}, "
            f"{SAMPLES} and {DATA}. Restore it, or make the task again."
        )
    for file, expected in files.items():
        if not (directory / file).is_file() or _hash(directory / file) != expected:
            raise ValueError(
                f"{directory / file} is missing or damaged: it does not match its hash in {MANIFEST}. "
                "Restore it, or make the task again."
            )
    return about


def _check(where: Path, samples: Tensor, bad: Tensor, held_out: Tensor, *others: Tensor | None) -> None:
    """Raise unless some samples are bad and some good, and everything has the same size."""
    n, shape = len(samples), tuple(samples.shape[1:])
    if bad.dtype != torch.bool or bad.shape != (n,) or not 0 < int(bad.sum()) < n:
        raise ValueError(
            f"{where}: bad must be a mask of {n} samples with some bad and some good ones, got {bad.dtype} "
            f"of shape {tuple(bad.shape)} with {int(bad.sum())} bad."
        )
    if len(held_out) < 2 or tuple(held_out.shape[1:]) != shape:
        raise ValueError(
            f"{where}: held_out must have at least 2 samples of shape {shape}, got {tuple(held_out.shape)}."
        )
    if any(each is not None and each.shape != (n,) for each in others):
        raise ValueError(f"{where}: seed, kind and mode must have one number for each of {n} samples.")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _take(stored: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}


def _encode(x: Tensor, stored_as: StoredAs) -> Tensor:
    if stored_as == "uint8":
        return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return x.to({"float32": torch.float32, "float16": torch.float16}[stored_as])


def _decode(x: Tensor) -> Tensor:
    return x.float() / 127.5 - 1 if x.dtype == torch.uint8 else x.float()


def _find_kinds(samples: Tensor, bad: Tensor, data: Tensor, held_out: Tensor) -> Tensor:
    """The kind of fault of each sample, (n,); −1 for good ones."""
    space = Space(data.flatten(1))
    own, real = space.score(samples.flatten(1)), space.score(held_out.flatten(1))
    kind = (own > real.quantile(_USUAL)).long() + (own > real.max()).long()
    return torch.where(bad, kind, -1)


def _write_card(task: Task) -> str:
    shares = ", ".join(f"{int((task.kind == k).sum())} {kind}" for k, kind in enumerate(KINDS))
    origin = "generated from a seed" if "generated" in task.about else "stored here"
    size = sum((task.directory / file).stat().st_size for file in task.about["files"]) / 1e6
    return "\n".join(
        [
            f"# {task.name}\n",
            f"{task.about['title']}\n",
            f"- Truth: {task.about['truth']}",
            f"- Samples: {len(task.samples):,} of {len(task.seed.unique())} seeds, of which "
            f"{int(task.bad.sum()):,} are bad ({shares}).",
            f"- Training data: {len(task.data):,} samples, {origin}; held out: {len(task.held_out):,}.",
            f"- Network: {task.model!r}",
            f"- Size: {size:.1f} MB. Made by FLARE {task.about['flare']}.\n",
        ]
    )
