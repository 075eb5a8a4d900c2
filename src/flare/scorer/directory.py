"""A scorer on disk: a directory of safetensors files and JSON, without pickle, replaced as a whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import posteriors
from ..diffusion import schedules
from ..diffusion.noising import Pairs
from ..diffusion.schedules import Schedule
from ..integrations import hub
from ..model import Model
from ..network.denoiser import Denoiser
from ..results.verdict import Reference
from ..sampling.finished import make_encoder
from ..scores.neighbors import NEIGHBORS, Features, TrainingData, compute_features
from ..scores.space import Space
from ..storage import checkpoint
from .inputs import open_gaussian_diffusion, open_model
from .scorer import Scorer
from .witnesses import WITNESSES

FORMAT = 2
#: the files of a scorer; the first one is written last
NAMES = (
    "scorer.json", "posterior.safetensors", "reference.safetensors", "features.safetensors",
    "data.safetensors",
)  # fmt: skip
_MAIN, POSTERIOR, REFERENCE, _FEATURES, _DATA = NAMES
_POINTS, _SCALE, _AXES, _CENTER = "points.", "scale.", "axes.", "center."  # prefixes of a space's tensors
_PROBED = 4  # training samples whose features are stored, to recognize the function


def save(scorer: Scorer, path: str | os.PathLike[str], data: bool, source: str | None) -> None:
    """Write a scorer into a new directory, which then replaces an old one.

    Args:
        scorer: The scorer.
        path: The directory.
        data: Whether to include the kept training samples.
        source: Where the command line finds the model.
    """
    path = Path(path)
    if path.exists() and not (path / _MAIN).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not a scorer; choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}{checkpoint.PARTIAL}", dir=path.parent))
    try:
        _write(scorer, partial, data, source)
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


def _write(scorer: Scorer, path: Path, data: bool, source: str | None) -> None:
    """Write all files, the main one last."""
    scorer.posterior.save(path / POSTERIOR)
    data = data and NEIGHBORS in scorer.training.spaces
    training, reference = scorer.training, scorer.reference
    if not data:
        training = training.without_samples()
        reference = reference.restrict(training.spaces)
    reference.save(path / REFERENCE)
    tensors: dict[str, Tensor] = {}
    for name, space in training.spaces.items():
        if name != NEIGHBORS or training.samples is None or training.features is not None:
            parts = {_POINTS: space.points, _SCALE: space.scale, _AXES: space.axes, _CENTER: space.center}
            tensors |= {key + name: part for key, part in parts.items() if part is not None}
    checkpoint.save(path / _FEATURES, tensors)
    if data:
        kept = {"samples": training.samples, "rows": training.rows, "centers": scorer.centers}
        checkpoint.save(path / _DATA, {name: value for name, value in kept.items() if value is not None})
    meta: dict[str, Any] = {
        "format": FORMAT,
        "prediction": scorer.denoiser.prediction,
        "schedule": dict(scorer.schedule.spec) or None,
        "shape": list(scorer.shape),
        "clip": scorer.clip,
        "seed": scorer.seed,
        "noise_pairs": scorer.encoder.pairs,
        "layers": dict(scorer.encoder.layers),
        "about": scorer.about,
        "source": source,
        "posterior": _read_checksum(path / POSTERIOR),
        "data": data,
        "features": training.features is not None,
        "copy_distance": training.copy_distance,
        "parts": {name: _read_checksum(path / name) for name in NAMES[2:] if (path / name).is_file()},
    }
    meta = json.loads(json.dumps(meta))  # as it is read again
    checkpoint.save_json(path / _MAIN, meta | {checkpoint.CHECKSUM: checkpoint.digest(meta)})


def load(
    path: str | os.PathLike[str],
    net: Any,
    *,
    schedule: Schedule | None = None,
    features: Features | None = None,
    token: str | bool | None = None,
) -> Scorer:
    """Read a scorer that `Scorer.save` wrote; it gives the same scores and verdicts.

    >>> scorer.save("scorer")
    >>> flare.load("scorer", denoiser).reference
    Reference: neighbors, activations, epistemic_distance of 500 training samples

    Args:
        path: The directory, or hf://owner/name for a scorer that `Scorer.push_to_hub` shared
            (hf://owner/name@revision).
        net: The network, in any form that `flare.fit` accepts, with the weights of the fit.
        schedule: The noise levels, to compare with the fit; required only if the schedule could not be saved.
        features: The function that was passed to `flare.fit`, if any.
        token: An access token with read permission; by default the token of `hf auth login`.
    """
    if hub.is_address(path):
        path = hub.download(os.fspath(path), NAMES, token)
    path = Path(path)
    stored = read_main(path)
    net = open_gaussian_diffusion(net)
    model = open_model(net, *_choose_schedule(path, net, schedule, stored))
    posterior = posteriors.load(path / POSTERIOR, model.denoiser, _draw_pairs(path, model, stored, features))
    posterior.check(model.denoiser, model.schedule)
    training, centers = _read_training(path, stored, features)
    reference = Reference.load(path / REFERENCE)
    encoder = make_encoder(model, posterior, stored.layers, stored.seed, stored.noise_pairs, names=WITNESSES)
    return Scorer(
        model, posterior, encoder, reference, training, centers, stored.shape, stored.clip, stored.seed,
        stored.about,
    )  # fmt: skip


def _read_checksum(path: Path) -> str | None:
    return checkpoint.metadata(path).get(checkpoint.CHECKSUM)


def is_scorer(directory: Path) -> bool:
    """Whether `Scorer.save` wrote this directory."""
    return (directory / _MAIN).is_file()


def refuse_old_run(path: Path) -> None:
    """Refuse a run directory of version 0.4, and name the command that makes a scorer."""
    if (path / "config.json").is_file() and (path / POSTERIOR).is_file():
        raise ValueError(
            f"{path} is a run directory of version 0.4. Fit its network again, which makes a scorer: "
            "`flare fit MODEL --data FILE --out DIR`."
        )


def read_main(path: Path) -> Stored:
    """Read what is known about a scorer without its network, and check that its files belong together."""
    if not is_scorer(path):
        refuse_old_run(path)
        raise FileNotFoundError(
            f"there is no scorer at {path}; write one with scorer.save(path), or read one of the Hugging "
            "Face Hub as hf://owner/name."
        )
    meta = checkpoint.load_json(path / _MAIN)
    found = meta.get("format") if isinstance(meta, dict) else None
    if found == 1:
        raise ValueError(
            f"{path} is a scorer of version 0.4, which used other scores. Fit it again with flare.fit, "
            "or with flare fit MODEL --data FILE --out DIR."
        )
    if found != FORMAT:
        raise ValueError(
            f"{path} is not a scorer of format {FORMAT}, its format is {found!r}; fit and save it again with "
            "this version of flare."
        )
    if meta.pop(checkpoint.CHECKSUM, None) != checkpoint.digest(meta):
        raise ValueError(
            f"{path / _MAIN} is damaged: its content does not match its checksum; restore it from a copy, or "
            "fit again."
        )
    try:
        known = meta | {"shape": tuple(meta["shape"])}
        stored = Stored(**{name: known[name] for name in Stored._fields})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path / _MAIN} lacks {error}; fit again.") from error
    for name, checksum in {POSTERIOR: stored.posterior, **stored.parts}.items():
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path / name} is missing; restore it from a copy, or fit again.")
        if _read_checksum(path / name) != checksum:
            raise ValueError(
                f"{path / name} belongs to another scorer than {path / _MAIN}; restore both from a copy, or "
                "fit again."
            )
    return stored


class Stored(NamedTuple):
    """The contents of the JSON file."""

    prediction: str
    schedule: dict[str, Any] | None
    shape: tuple[int, ...]
    clip: float
    seed: int
    noise_pairs: int
    layers: dict[str, int]
    about: dict[str, Any]
    data: bool
    features: bool
    copy_distance: float
    posterior: str  # its checksum
    source: str | None
    parts: dict[str, str]  # the checksums of the other files


def _choose_schedule(
    path: Path, net: Any, schedule: Schedule | None, stored: Stored
) -> tuple[Schedule | None, str | None]:
    """The schedule and the prediction that a bare network is opened with."""
    if not isinstance(net, (nn.Module, Denoiser)):
        return schedule, None
    if schedule is None and stored.schedule is None:
        raise ValueError(f"{path} does not describe its noise levels; give schedule= as in flare.fit.")
    if schedule is None:
        schedule = schedules.build(stored.schedule or {})
    if isinstance(net, Denoiser) and net.prediction != stored.prediction:
        raise ValueError(
            f"the scorer was fitted to a network that predicts {stored.prediction}, this denoiser predicts "
            f"{net.prediction}; make it with flare.Denoiser(net, prediction={stored.prediction!r})."
        )
    return schedule, stored.prediction


def _draw_pairs(path: Path, model: Model, stored: Stored, features: Features | None) -> Pairs | None:
    """The training pairs of the fit, if the posterior needs them; None if they are not kept."""
    structure = posteriors.STRUCTURES.get(checkpoint.metadata(path / POSTERIOR).get("structure", ""))
    if structure is None or not structure.posterior.needs_all_processes:
        return None
    samples, about = _read_training(path, stored, features)[0].samples, stored.about
    whole = samples is not None and about.get("training_size") == len(samples)
    if samples is None or not whole or about["conditions"] or "weighting" not in about:
        return None
    return model.pairs(samples, about["pairs"], about["seed"], weighting=about["weighting"])


def _read_training(
    path: Path, stored: Stored, features: Features | None
) -> tuple[TrainingData, Tensor | None]:
    """The training data and its regions, if saved; the features must be those of the fit."""
    spaces = _read_spaces(path / _FEATURES)
    if not stored.data:
        if features is not None:
            raise ValueError(
                f"{path} was saved without training data: features= has no effect, leave it out."
            )
        return TrainingData(spaces, torch.empty(0, dtype=torch.long)), None
    if stored.features != (features is not None):
        advice = "give the same function, features=" if stored.features else "leave features= out"
        how = "with" if stored.features else "without"
        raise ValueError(f"the scorer at {path} was fitted {how} features; {advice}.")
    tensors, _ = checkpoint.load(path / _DATA)
    samples = tensors.get("samples")
    if samples is not None and NEIGHBORS not in spaces:
        spaces = {NEIGHBORS: Space(compute_features("data", samples, None)), **spaces}
    training = TrainingData(spaces, tensors["rows"], samples, features, stored.copy_distance)
    if features is not None and samples is not None:
        found, expected = training.locate(samples[:_PROBED]), spaces[NEIGHBORS].points[:_PROBED].float()
        if found.shape != expected.shape or not torch.allclose(found.float(), expected, rtol=1e-3, atol=1e-5):
            raise ValueError(
                f"features differs from the function that the scorer at {path} was fitted with: it maps the "
                "same samples to other features. Give the same function, or fit again."
            )
    return training, tensors["centers"]


def _read_spaces(path: Path) -> dict[str, Space]:
    """The training samples as points, by score."""
    tensors, _ = checkpoint.load(path)
    spaces = {}
    for key, points in tensors.items():
        if not key.startswith(_POINTS):
            continue
        name = key.removeprefix(_POINTS)
        spaces[name] = Space(points, *(tensors.get(part + name) for part in (_SCALE, _AXES, _CENTER)))
    return spaces
