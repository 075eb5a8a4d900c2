"""Reading posteriors from files: H, what it was computed from, δ and s."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ..core.validation import one_of
from ..diffusion.noising import Pairs
from ..diffusion.schedules import Summary
from ..network.coordinates import KINDS, Subset
from ..network.denoiser import Denoiser
from ..storage import checkpoint
from .curvature import Origin, Statistics
from .posterior import FORMAT, STRUCTURES, Posterior


def load(
    path: str | os.PathLike[str], denoiser: Denoiser | None = None, pairs: Pairs | None = None
) -> Posterior:
    """Read a posterior that `posterior.save(path)` wrote; its directions are equal to the last bit.

    >>> posterior.save("posterior.safetensors")
    >>> loaded = flare.posteriors.load("posterior.safetensors", denoiser)
    >>> loaded.prior_precision == posterior.prior_precision
    True

    Args:
        path: The file.
        denoiser: The network; if given, the posterior must have been fitted to it. A matrix-free posterior
            needs it.
        pairs: The training pairs, which only a matrix-free posterior needs.
    """
    tensors, meta = checkpoint.load(path)
    if meta.get("format") != FORMAT or "structure" not in meta:
        raise ValueError(
            f"{path} is not a posterior of format {FORMAT}: its format is {meta.get('format')!r}. "
            "Fit and save it again with this version."
        )
    structure = STRUCTURES.find(meta["structure"])
    try:
        origin = _read_origin(tensors, meta)
        posterior = structure.posterior.restore(origin, tensors, meta, denoiser, pairs)
        posterior.verify()
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{error!r}."
        raise ValueError(f"{path} cannot be used as a {structure.name} posterior: {reason}") from error
    if denoiser is not None:
        posterior.check(denoiser)
    return posterior


def _read_origin(tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Origin:
    """Read and check the origin; its tensors are removed from `tensors`."""
    # files of earlier versions do not name the kind
    kind = KINDS[one_of("kind of coordinates", meta.get("coordinates", Subset.kind), KINDS)]
    subset = kind.restore(tensors, meta)
    statistics = Statistics(**meta["statistics"])
    squared_norm = meta["squared_norm"]
    for name, value in {**asdict(statistics), "squared_norm": squared_norm}.items():
        low = 0 if name in ("residual_variance", "squared_norm") else 1
        if isinstance(value, (str, bool)) or not low <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least {low}, got {value!r}.")
    prints = {name: str(meta["fingerprint"][name]) for name in ("structure", "weights")}
    schedule = meta.get("schedule")  # files of earlier versions do not have it
    levels = None if schedule is None else Summary.read(schedule)
    return Origin(subset, prints, statistics, float(squared_norm), levels)
