"""Samples as features, and distances to training samples between these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core import SHARED_LEVELS
from ..core.conditions import Cond, take_rows, to_device
from ..core.progress import warn
from ..model import Model
from ..network.denoiser import times
from ..network.layers import count_products, find_layers
from ..posteriors import Posterior, Root
from ..scores import SCORES, Encoder, Space
from .finished import Levels, find_levels


def make_encoder(
    model: Model,
    posterior: Posterior | None,
    layers: Mapping[str, int],
    seed: int,
    pairs: int = 1,
    levels: Levels = SHARED_LEVELS,
    names: Sequence[str] | None = None,
) -> Encoder:
    """The encoder of all scores that have a reader, or of those that are named."""
    readers = {
        name: score.reader
        for name, score in SCORES.items()
        if score.reader is not None and (names is None or name in names)
    }
    root = None if posterior is None else Root.of(posterior, seed)
    found = find_levels(model.schedule, levels)
    return Encoder(model.denoiser.wide(), found, readers, seed, pairs, layers, root)


def trace_layers(
    model: Model, x: Tensor, cond: Cond, names: Sequence[str] | None = None, levels: Levels = SHARED_LEVELS
) -> tuple[dict[str, int], float]:
    """The layers to look at, and the multiplications that one call of the network takes.

    A warning says if there are none, since the scorer then judges without activations.
    """
    denoiser = model.denoiser.wide()
    few = x[[0, -1]].to(denoiser.device, denoiser.dtype)
    if torch.equal(few[0], few[1]):
        few = torch.stack([few[0], few[0] + 1])
    own = to_device(take_rows(cond, slice(0, 1)), few.device)
    t = [times(level.time, few[:1]) for level in find_levels(model.schedule, levels)]
    layers = find_layers(denoiser, few, t, own, names)
    if not layers:
        warn(
            f"{denoiser.name} has no convolution or linear layers that depend on x, so samples are judged "
            "without its activations. Name layers to look at with layers=.",
            UserWarning,
        )
    return layers, count_products(denoiser, few[:1], t[0], own)


def make_spaces(encoder: Encoder, encoded: Mapping[str, Tensor]) -> dict[str, Space]:
    """Training samples as points; those with NaN or infinity are left out."""
    spaces = {}
    for name, features in encoded.items():
        finite = features.isfinite().all(1)
        if not finite.any():
            warn(
                f"all training samples have NaN or infinity in {name}, so samples are judged without it. "
                "Check that the network gives finite outputs for the data.",
                UserWarning,
            )
            continue
        if lost := int((~finite).sum()):
            warn(
                f"{lost} of {len(features)} training samples have NaN or infinity in {name}: they are left "
                "out.",
                UserWarning,
            )
        scale = encoder.readers[name].scale(encoder, features[finite])
        spaces[name] = Space(features[finite] if scale is None else features[finite] * scale, scale)
    return spaces


def compute_distances(spaces: Mapping[str, Space], encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scores of encoded samples, (n,) each."""
    return {name: space.score(encoded[name]) for name, space in spaces.items() if name in encoded}
