"""A scorer on disk: a directory of safetensors files and JSON, without pickle, replaced as a whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .. import posteriors
from ..core.validation import require_samples
from ..diffusion import schedules
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser
from ..results.reference import Reference
from ..scores.neighbors import Features, compute_features
from ..storage import checkpoint
from .inputs import open_model
from .judge import Judge, TrainingData
from .scorer import Scorer

FORMAT = 1
_MAIN, _POSTERIOR, _REFERENCE, _DATA = (
    "scorer.json", "posterior.safetensors", "reference.safetensors", "data.safetensors",
)  # fmt: skip
_PROBED = 4  # training samples whose features are stored, to recognize the function


def save(scorer: Scorer, path: str | os.PathLike[str], data: bool) -> None:
    """Write a scorer: into a new directory, which then takes the place of an old one."""
    path = Path(path)
    if path.exists() and not (path / _MAIN).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not a scorer; choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}{checkpoint.PARTIAL}", dir=path.parent))
    try:
        _write(scorer, partial, data)
        partial.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}{checkpoint.PARTIAL}", dir=path.parent))
            path.replace(old)  # an empty directory
            partial.replace(path)
            shutil.rmtree(old)
        else:
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(scorer: Scorer, folder: Path, data: bool) -> None:
    training = scorer.judge.training if data else None
    scorer.posterior.save(folder / _POSTERIOR)
    scorer.reference.save(folder / _REFERENCE)
    meta: dict[str, Any] = {
        "format": FORMAT,
        "prediction": scorer.denoiser.prediction,
        "schedule": dict(scorer.schedule.spec) or None,
        "shape": list(scorer.shape),
        "clip": scorer.clip,
        "seed": scorer.judge.seed,
        "about": scorer.about,
        "data": training is not None,
        "features": training is not None and training.features is not None,
    }
    if training is not None:
        meta["copy_distance"] = training.copy_distance
        tensors = {"samples": training.samples, "rows": training.rows}
        if training.features is not None:
            tensors["features"] = training.points[:_PROBED]
        checkpoint.save(folder / _DATA, tensors)
    checkpoint.save_json(folder / _MAIN, meta)


def load(
    path: str | os.PathLike[str],
    net: Any,
    *,
    schedule: Schedule | None = None,
    features: Features | None = None,
) -> Scorer:
    """Read a scorer that `Scorer.save` wrote; its scores and verdicts are the same.

    >>> scorer.save("scorer")
    >>> flare.load("scorer", denoiser).reference
    Reference: influence, neighbors of 500 training samples

    Args:
        path: the directory.
        net: the network, in any form that `flare.fit` takes. Other weights than those of the fit are refused.
        schedule: the noise levels, to be compared with those of the fit; needed only if they have no
            description that could be saved.
        features: the function that `flare.fit` was given, if it was given one.
    """
    path = Path(path)
    if not (path / _MAIN).is_file():
        raise FileNotFoundError(f"there is no scorer at {path}; write one with scorer.save(path).")
    meta = checkpoint.load_json(path / _MAIN)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a scorer of format {FORMAT}; fit and save it again with this version of flare."
        )
    try:
        stored = _Stored.parse(meta)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path / _MAIN} is damaged ({error!r}); restore it from a copy, or fit again."
        ) from error
    model = open_model(net, *_choose_schedule(path, net, schedule, stored))
    posterior = posteriors.load(path / _POSTERIOR, model.denoiser)
    posterior.check(model.denoiser, model.schedule)
    training = _read_training(path, stored, features)
    reference = Reference.load(path / _REFERENCE)
    judge = Judge(model.denoiser, posterior, model.schedule, training, stored.seed)
    if missing := [name for name in judge.names if name not in reference.scores]:
        raise ValueError(f"{path / _REFERENCE} has no scores of {missing[0]}; restore it from a copy.")
    return Scorer(model, judge, reference, stored.shape, stored.clip, stored.about)


@dataclass(frozen=True)
class _Stored:
    """The contents of the JSON file."""

    prediction: str
    schedule: dict[str, Any] | None
    shape: tuple[int, ...]
    clip: float
    seed: int
    about: dict[str, Any]
    data: bool
    features: bool
    copy_distance: float

    @classmethod
    def parse(cls, meta: dict[str, Any]) -> _Stored:
        """Check the types of all values."""
        about, schedule = meta["about"], meta["schedule"]
        for name in ("network_parameters", "subset", "passes", "range", "conditions", "remarks", "problems"):
            about[name]  # what the repr and the checks of a scorer read
        if not isinstance(schedule, dict | None):
            raise TypeError(f"schedule is {schedule!r}")
        return cls(
            str(meta["prediction"]),
            schedule,
            tuple(map(int, meta["shape"])),
            float(meta["clip"]),
            int(meta["seed"]),
            about,
            bool(meta["data"]),
            bool(meta["features"]),
            float(meta.get("copy_distance", 0.0)),
        )


def _choose_schedule(
    path: Path, net: Any, schedule: Schedule | None, stored: _Stored
) -> tuple[Schedule | None, str | None]:
    """The schedule and the prediction that a bare network is opened with."""
    if not isinstance(net, (nn.Module, Denoiser)):
        return schedule, None
    if schedule is None and stored.schedule is None:
        raise ValueError(f"{path} does not describe its noise levels; give schedule= as in flare.fit.")
    if schedule is None:
        schedule = schedules.build(cast("dict[str, Any]", stored.schedule))
    if isinstance(net, Denoiser) and net.prediction != stored.prediction:
        raise ValueError(
            f"the scorer was fitted to a network that predicts {stored.prediction}, this denoiser predicts "
            f"{net.prediction}; make it with flare.Denoiser(net, prediction={stored.prediction!r})."
        )
    return schedule, stored.prediction


def _read_training(path: Path, stored: _Stored, features: Features | None) -> TrainingData | None:
    """The kept training data, if it was saved; the features must be those of the fit."""
    if not stored.data:
        if features is not None:
            raise ValueError(f"{path} was saved without training data: features= has no use, leave it out.")
        return None
    if stored.features != (features is not None):
        advice = "give the same function, features=" if stored.features else "leave features= out"
        how = "with" if stored.features else "without"
        raise ValueError(f"the scorer at {path} was fitted {how} features; {advice}.")
    tensors, _ = checkpoint.load(path / _DATA)
    if not {"samples", "rows"} <= set(tensors) or len(tensors["rows"]) != len(tensors["samples"]):
        raise ValueError(f"{path / _DATA} is incomplete; restore it from a copy, or fit again.")
    samples = require_samples("the saved data", tensors["samples"])
    if features is not None:
        found = compute_features("data", samples[:_PROBED], features, _PROBED)
        expected = tensors["features"].to(found)
        if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-3, atol=1e-5):
            raise ValueError(
                f"features differs from the function that the scorer at {path} was fitted with: it maps the "
                "same samples to other features. Give the same function, or fit again."
            )
    return TrainingData(samples, tensors["rows"], features, stored.copy_distance)
